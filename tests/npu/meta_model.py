"""Decoders whose tensors have shapes and no memory, on the NPU's kernels: one rank of a model."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.npu.kernels import NpuKernels
from tandem_engine.device.packed_model import PackedLayer, PackedLinear, PackedModel
from tandem_engine.device.packing import pack, pack_int8
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.decoder import Decoder, allocate_kv_cache
from tandem_engine.model.rope import RopeDefault
from tandem_engine.model.stages import drive
from tandem_engine.parallel.plan import ParallelShape, plan_rank
from tandem_engine.quantization.int8 import Int8Weight, StaticInput

BLOCK_SIZE: Final = 128
BF16: Final = torch.bfloat16
META: Final = torch.device("meta")

MakeLinear = Callable[[int, int, bool], PackedLinear]
"""Outputs, inputs, whether there is a bias → the layer."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model's, and the ranks that share it."""

    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    architecture: str = "Qwen3ForCausalLM"
    layers: int = 2
    """As many as are computed, in place of all."""
    tp: int = 1

    @property
    def config(self) -> DecoderConfig:
        """Return them as a checkpoint would give them."""
        return DecoderConfig(
            architecture=self.architecture,
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=128,
            rms_norm_eps=1e-6,
            max_position_embeddings=4096,
            rope=RopeDefault(theta=1e6),
            tie_word_embeddings=False,
            qkv_bias=self.architecture == "Qwen2ForCausalLM",
            output_bias=False,
            mlp_bias=False,
            qk_norm=self.architecture == "Qwen3ForCausalLM",
            dtype="bfloat16",
        )


class CheckedKernels(NpuKernels):
    """Makes sure that each stage gives bfloat16, a row for each token."""

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        """[tokens, in] → [tokens, out]."""
        return _checked(super().linear(x, packed), len(x))

    def norm_linear(self, x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        """[tokens, in] → [tokens, out], and the sum."""
        y, total = super().norm_linear(x, *others)
        return _checked(y, len(x)), _checked(total, *x.shape)

    def silu_mul_linear(self, gate_up: Tensor, packed: PackedLinear) -> Tensor:
        """[tokens, 2 * width] → [tokens, out]."""
        return _checked(super().silu_mul_linear(gate_up, packed), len(gate_up))

    def prepare_attention(self, qkv: Tensor, *others: Any, **named: Any) -> Tensor:
        """[tokens, …] → [tokens, heads, head_dim]."""
        return _checked(super().prepare_attention(qkv, *others, **named), len(qkv))

    def paged_attention(self, q: Tensor, *others: Any) -> Tensor:
        """[tokens, heads, head_dim] → [tokens, heads * head_dim]."""
        return _checked(super().paged_attention(q, *others), len(q), q.shape[1] * q.shape[2])


def _checked(x: Tensor, *shape: int) -> Tensor:
    if x.shape[: len(shape)] != shape or x.dtype != BF16:
        raise AssertionError(f"{tuple(x.shape)} of {x.dtype} came, not {shape} of {BF16}")
    return x


class NoOthers:
    """Collectives that leave tensors as they are, and count their bytes."""

    def __init__(self) -> None:
        self.num_bytes: list[int] = []

    def all_reduce(self, tensor: Tensor) -> None:
        """Count it."""
        self.num_bytes.append(tensor.numel() * tensor.element_size())

    reduce_scatter = all_gather = all_reduce

    def gather_columns(self, tensor: Tensor, num_columns: int) -> Tensor:
        """Return as many columns."""
        self.all_reduce(tensor)
        return tensor.new_empty(len(tensor), num_columns)


def floats(outputs: int, inputs: int, has_bias: bool) -> PackedLinear:
    """A linear layer in bfloat16."""
    bias = _vector(outputs) if has_bias else None
    return pack(NpuKernels(), torch.empty(outputs, inputs, dtype=BF16, device=META), bias)


def dynamic(outputs: int, inputs: int, has_bias: bool) -> PackedLinear:
    """A linear layer in 8 bits, whose inputs are quantised token by token."""
    return _int8(outputs, inputs, None, has_bias=has_bias)


def static(outputs: int, inputs: int, has_bias: bool) -> PackedLinear:
    """A linear layer in 8 bits, whose inputs have one scale."""
    return _int8(outputs, inputs, StaticInput(0.1, 120), has_bias=has_bias)


LINEARS: Final[dict[str, MakeLinear]] = {
    "bfloat16": floats,
    "W8A8, a scale a token": dynamic,
    "W8A8, one scale": static,
}


def _int8(outputs: int, inputs: int, static: StaticInput | None, *, has_bias: bool) -> PackedLinear:
    weight = Int8Weight(
        values=torch.empty(outputs, inputs, dtype=torch.int8, device=META),
        scales=torch.empty(outputs, device=META),
        bias=torch.empty(outputs, device=META) if has_bias else None,
        static=static,
    )
    return pack_int8(NpuKernels(), weight)


def _vector(size: int) -> Tensor:
    return torch.empty(size, dtype=BF16, device=META)


def decoder_of(sizes: Sizes, linear: MakeLinear) -> Decoder:
    """Return the part of a model that the first rank has."""
    config = sizes.config
    plan = plan_rank(ParallelShape(tp=sizes.tp), config, 0)
    head_dim, hidden, wide = config.head_dim, config.hidden_size, len(plan.intermediate)
    norms = _vector(head_dim) if config.qk_norm else None
    width = len(plan.query_rows) + 2 * len(plan.kv_rows)
    layers = [
        PackedLayer(
            attention_norm=_vector(hidden),
            qkv=linear(width, hidden, config.qkv_bias),
            q_norm=norms,
            k_norm=norms,
            output=linear(hidden, len(plan.query_rows), False),  # noqa: FBT003
            mlp_norm=_vector(hidden),
            gate_up=linear(2 * wide, hidden, False),  # noqa: FBT003
            down=linear(hidden, wide, False),  # noqa: FBT003
        )
        for _ in plan.layers
    ]
    packed_model = PackedModel(
        num_heads=len(plan.heads),
        num_kv_heads=len(plan.kv_heads),
        head_dim=head_dim,
        hidden_size=hidden,
        intermediate_size=wide,
        vocab_size=plan.vocab_width,
        vocab=plan.vocab if sizes.tp > 1 else None,
        dtype=BF16,
        eps=config.rms_norm_eps,
        rope=torch.empty(config.max_position_embeddings, head_dim, dtype=BF16, device=META),
        embedding=torch.empty(plan.vocab_width, hidden, dtype=BF16, device=META),
        layers=tuple(layers),
        norm=_vector(hidden),
        head=floats(plan.vocab_width, hidden, False),  # noqa: FBT003
    )
    return Decoder(config, packed_model, CheckedKernels(), plan=plan)


@torch.no_grad()  # so that what stands for several operators is seen as these
def compute(
    decoder: Decoder, *, decodes: int, chunk: int, context: int, enable_mc2: bool = False
) -> NoOthers:
    """Compute a step of rows that decode, and perhaps one chunk of a prompt.

    Args:
        decoder: One of `decoder_of`.
        decodes: Rows that decode.
        chunk: Tokens of the prompt; 0: there is none.
        context: Tokens of every row in the cache, the new ones included.
        enable_mc2: Multiply and add up in one operator.
    """
    news = [1] * decodes + [chunk] * (chunk > 0)
    contexts = [context] * len(news)
    blocks = [-(-length // BLOCK_SIZE) for length in contexts]
    metadata = build_attention_metadata(
        query_lens=news,
        context_lens=contexts,
        block_tables=[
            range(sum(blocks[:row]), sum(blocks[: row + 1])) for row in range(len(blocks))
        ],
        block_size=BLOCK_SIZE,
        device=META,
    )
    layout = decoder.cache_layout(BLOCK_SIZE)
    others = NoOthers()
    logits = drive(
        decoder.stages(
            torch.empty(sum(news), dtype=torch.int64, device=META),
            allocate_kv_cache(layout, num_blocks=sum(blocks), device=META),
            metadata,
            logits_rows=torch.empty(len(news), dtype=torch.int64, device=META),
            linear_sum=partial(decoder.linear_all_reduce(), group="g") if enable_mc2 else None,
        ),
        others,
    )
    if logits is None or logits.shape != (len(news), decoder.config.vocab_size):
        raise AssertionError(f"{logits} are no logits of {len(news)} rows")
    return others
