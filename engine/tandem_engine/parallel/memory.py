"""Memory of a rank, estimated before anything is loaded: arithmetic only.

    memory of the replica / ranks = process + weights + largest step + KV cache + host blocks

Weights follow from the rank's plan: what it holds of each matrix, and which of them are in 8 bits.
The largest step is an estimate by the sizes of its activations; a replica measures it when it
starts (`runner.profile`), and goes by that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from tandem_engine.kvcache.capacity import StepCost
from tandem_engine.parallel.plan import ModelSizes, RankPlan

PROCESS_BYTES: Final = 500 * 2**20
"""About what a process with torch holds before it reads weights."""
_FLOAT32_BYTES: Final = 4
_HEAD: Final = "lm_head"
_FEW_TOKENS: Final = 64
"""Tokens of the smallest step whose memory counts as fixed."""


class ModelParts(ModelSizes, Protocol):
    """The sizes of a model that decide on its bytes; `model.config.DecoderConfig` has them."""

    @property
    def hidden_size(self) -> int:
        """Values of a token between layers."""

    @property
    def tie_word_embeddings(self) -> bool:
        """True if the output head is the embedding."""

    @property
    def qkv_bias(self) -> bool:
        """True if the projections of Q, K and V have a bias."""

    @property
    def output_bias(self) -> bool:
        """True if the projection after attention has one."""

    @property
    def mlp_bias(self) -> bool:
        """True if those of the feed-forward layer have one."""

    @property
    def qk_norm(self) -> bool:
        """True if each head of Q and K is normalised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes of a model's values."""

    float_bytes: int
    """Of a weight that is not in 8 bits."""
    is_in_8_bits: Callable[[str], bool]
    """By the name of a linear layer, such as model.layers.0.mlp.up_proj."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The part of one linear layer that a rank holds."""

    name: str
    """Of the layer, as in the checkpoint."""
    outputs: int
    inputs: int
    has_bias: bool = False


def matrices(plan: RankPlan, model: ModelParts) -> Iterator[Matrix]:
    """Yield the part of each linear layer that a rank holds."""
    for layer in plan.layers:
        yield from _of_layer(f"model.layers.{layer}", plan, model)
    if plan.is_last_stage:
        yield Matrix(_HEAD, plan.vocab_width, model.hidden_size)


def weight_bytes(plan: RankPlan, model: ModelParts, precision: Precision) -> int:
    """Bytes of all weights that a rank holds, without its table of angles."""
    # Where the two are tied, the head of a rank that has it serves as its embedding.
    has_table = plan.is_first_stage and not (model.tie_word_embeddings and plan.is_last_stage)
    table = len(plan.vocab) * model.hidden_size * precision.float_bytes if has_table else 0
    linears = sum(_bytes_of(matrix, precision) for matrix in matrices(plan, model))
    return table + linears + _norm_bytes(plan, model)


def angle_bytes(model: ModelParts, num_positions: int) -> int:
    """Bytes of the table of cosines and sines, which each rank has."""
    return num_positions * model.head_dim * _FLOAT32_BYTES


def step_cost(plan: RankPlan, model: ModelParts, float_bytes: int) -> StepCost:
    """About what steps cost on a rank beside weights and KV cache."""
    # Attention and the feed-forward layer take turns in the same memory.
    attention = 2 * len(plan.query_rows) + 2 * len(plan.kv_rows)
    widest = max(attention, 3 * len(plan.intermediate))
    per_token = float_bytes * (2 * model.hidden_size + widest)
    logits = _FLOAT32_BYTES * plan.vocab_width if plan.is_last_stage else 0
    # The rank that samples has the logits of all, gathered.
    if plan.rank == 0 and plan.num_tp > 1:
        logits += _FLOAT32_BYTES * model.vocab_size
    return StepCost(fixed=_FEW_TOKENS * per_token, per_token=per_token, per_row=2 * logits)


def _of_layer(name: str, plan: RankPlan, model: ModelParts) -> Iterator[Matrix]:
    hidden, query, kv = model.hidden_size, len(plan.query_rows), len(plan.kv_rows)
    width = len(plan.intermediate)
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    yield Matrix(f"{attention}.q_proj", query, hidden, model.qkv_bias)
    yield Matrix(f"{attention}.k_proj", kv, hidden, model.qkv_bias)
    yield Matrix(f"{attention}.v_proj", kv, hidden, model.qkv_bias)
    yield Matrix(f"{attention}.o_proj", hidden, query, model.output_bias)
    yield Matrix(f"{mlp}.gate_proj", width, hidden, model.mlp_bias)
    yield Matrix(f"{mlp}.up_proj", width, hidden, model.mlp_bias)
    yield Matrix(f"{mlp}.down_proj", hidden, width, model.mlp_bias)


def _bytes_of(matrix: Matrix, precision: Precision) -> int:
    bias = _FLOAT32_BYTES * matrix.outputs * matrix.has_bias
    values = matrix.outputs * matrix.inputs
    if precision.is_in_8_bits(matrix.name):
        return values + _FLOAT32_BYTES * matrix.outputs + bias
    return values * precision.float_bytes + bias


def _norm_bytes(plan: RankPlan, model: ModelParts) -> int:
    of_layer = 2 * model.hidden_size + 2 * model.head_dim * model.qk_norm
    last = model.hidden_size * plan.is_last_stage
    return _FLOAT32_BYTES * (len(plan.layers) * of_layer + last)
