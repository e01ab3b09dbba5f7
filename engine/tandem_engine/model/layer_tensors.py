"""The tensors of a decoder's layers, each declared once.

Loading, the cut among ranks, weights in 8 bits, what a rank holds before anything is loaded, and
the packed layer all follow from a declaration. A kind of attention or of feed-forward layer is a
function that yields its tensors, in the order in which they are loaded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.projection import Projection
from tandem_engine.parallel.plan import RankPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class NormTensor:
    """A vector, as norms have one; every rank has all of it."""

    field: str
    """Of `PackedLayer`."""
    name: str
    """In a checkpoint, without `.weight`."""
    width: int
    reader: str | None = None
    """Field of the linear layer that alone reads what it norms: how that is quantised may have
    changed the norm. None: there is no such layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTensor:
    """Projections that read the same input, as one matrix."""

    field: str
    """Of `PackedLayer`."""
    projections: tuple[Projection, ...]
    """In the order of their rows."""
    has_bias: bool
    is_sum: bool = False
    """True if other ranks hold other columns: one rank alone adds the bias."""


LayerTensor = NormTensor | LinearTensor
Kind = Callable[[DecoderConfig, RankPlan, str], Iterator[LayerTensor]]
"""Yields the tensors of a layer with a prefix of names, as a rank holds them."""


def kinds_of(config: DecoderConfig) -> tuple[Kind, ...]:  # noqa: ARG001  # one of each so far
    """Return the attention and the feed-forward layer that a model's layers are."""
    return (grouped_query, gated)


def layer_tensors(config: DecoderConfig, plan: RankPlan, layer: int) -> Iterator[LayerTensor]:
    """Yield the tensors of a layer, by its number in the model."""
    for kind in kinds_of(config):
        yield from kind(config, plan, f"model.layers.{layer}")


def grouped_query(config: DecoderConfig, plan: RankPlan, prefix: str) -> Iterator[LayerTensor]:
    """Attention whose query heads share heads of K and V (Ainslie et al., "GQA", 2023)."""
    attention, queries = f"{prefix}.self_attn", config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    yield NormTensor(
        field="attention_norm",
        name=f"{prefix}.input_layernorm",
        width=config.hidden_size,
        reader="qkv",
    )
    yield LinearTensor(
        field="qkv",
        projections=(
            by_rows(config, f"{attention}.q_proj", plan.query_rows, outputs=queries),
            by_rows(config, f"{attention}.k_proj", plan.kv_rows, outputs=kv_width),
            by_rows(config, f"{attention}.v_proj", plan.kv_rows, outputs=kv_width),
        ),
        has_bias=config.qkv_bias,
    )
    if config.qk_norm:
        yield NormTensor(field="q_norm", name=f"{attention}.q_norm", width=config.head_dim)
        yield NormTensor(field="k_norm", name=f"{attention}.k_norm", width=config.head_dim)
    yield LinearTensor(
        field="output",
        projections=(by_columns(config, f"{attention}.o_proj", plan.query_rows, inputs=queries),),
        has_bias=config.output_bias,
        is_sum=True,
    )


def gated(config: DecoderConfig, plan: RankPlan, prefix: str) -> Iterator[LayerTensor]:
    """A feed-forward layer with a gate (Shazeer, "GLU Variants Improve Transformer", 2020)."""
    mlp, width = f"{prefix}.mlp", config.intermediate_size
    yield NormTensor(
        field="mlp_norm",
        name=f"{prefix}.post_attention_layernorm",
        width=config.hidden_size,
        reader="gate_up",
    )
    yield LinearTensor(
        field="gate_up",
        projections=(
            by_rows(config, f"{mlp}.gate_proj", plan.intermediate, outputs=width),
            by_rows(config, f"{mlp}.up_proj", plan.intermediate, outputs=width),
        ),
        has_bias=config.mlp_bias,
    )
    yield LinearTensor(
        field="down",
        projections=(by_columns(config, f"{mlp}.down_proj", plan.intermediate, inputs=width),),
        has_bias=config.mlp_bias,
        is_sum=True,
    )


def by_rows(config: DecoderConfig, name: str, rows: range, *, outputs: int) -> Projection:
    """Return some of a projection's `outputs`, all of whose inputs a rank has."""
    inputs = config.hidden_size
    return Projection(name=name, outputs=outputs, inputs=inputs, rows=rows, columns=range(inputs))


def by_columns(config: DecoderConfig, name: str, columns: range, *, inputs: int) -> Projection:
    """Return all outputs of a projection, as the parts of a sum that some of its `inputs` make."""
    outputs = config.hidden_size
    return Projection(
        name=name, outputs=outputs, inputs=inputs, rows=range(outputs), columns=columns
    )
