"""The two random-weight models that speed is compared on, and the batches that they compute."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.device.runtime import Kernels
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.decoder import Decoder, KVCache, allocate_kv_cache
from tandem_engine.model.load_decoder import pack_model
from tandem_engine.model.parameters import allocate_parameters, checkpoint_parts
from tandem_engine.model.rope import RopeDefault, RopeTable
from tandem_engine.parallel.plan import RankPlan
from tandem_engine.quantization.scheme import FLOAT_SCHEME, Scheme
from tandem_engine.weights.fill import Part

BLOCK_SIZE: Final = 64
MAX_POSITIONS: Final = 8192
_SPREAD: Final = 0.02


def make_config(
    *, hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, mlp: int, vocab: int
) -> DecoderConfig:
    """A model of Qwen3's kind."""
    return DecoderConfig(
        architecture="Qwen3ForCausalLM",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-6,
        max_position_embeddings=MAX_POSITIONS,
        rope=RopeDefault(theta=1e6),
        tie_word_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=True,
        dtype="bfloat16",
    )


MODELS: Final = {
    "S": make_config(hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64, mlp=1536, vocab=8192),
    "M": make_config(
        hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, mlp=3072, vocab=32000
    ),
}
"""29 and 473 million parameters, Qwen3-shaped, embeddings tied."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one step."""

    name: str
    rows: tuple[tuple[int, int], ...]
    """New tokens and tokens before them, of each row."""

    @classmethod
    def decode(cls, rows: int, context: int) -> "Batch":
        """Rows of one token each."""
        return cls(f"{rows} x 1 at {context}", ((1, context - 1),) * rows)

    @classmethod
    def prompt(cls, tokens: int) -> "Batch":
        """One prompt in one chunk."""
        return cls(f"prompt of {tokens}", ((tokens, 0),))

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(new for new, _ in self.rows)

    @property
    def num_keys(self) -> int:
        """Tokens that the step reads of the cache, each once."""
        return sum(new + before for new, before in self.rows)

    @property
    def num_scores(self) -> int:
        """Pairs of a query and a key that it sees."""
        return sum(new * before + new * (new + 1) // 2 for new, before in self.rows)

    def layout(self) -> AttentionMetadata:
        """The step, its blocks spread over the cache without order."""
        need = [-(-(new + before) // BLOCK_SIZE) for new, before in self.rows]
        ids = torch.randperm(sum(need)).tolist()
        return build_attention_metadata(
            query_lens=[new for new, _ in self.rows],
            context_lens=[new + before for new, before in self.rows],
            block_tables=[[ids.pop() for _ in range(count)] for count in need],
            block_size=BLOCK_SIZE,
        )


def random_tensor(*shape: int) -> Tensor:
    """bfloat16, random: constant data can read faster than memory is."""
    return torch.randn(shape).mul_(_SPREAD).bfloat16()


def make_decoder(
    config: DecoderConfig,
    kernels: Kernels,
    scheme: Scheme = FLOAT_SCHEME,
    *,
    plan: RankPlan | None = None,
) -> Decoder:
    """Random weights, the same ones for the same shape; norms of 1.

    Args:
        config: The model.
        kernels: Compute with it.
        scheme: Which layers are in 8 bits.
        plan: The part of one rank; None: all of it.
    """
    torch.manual_seed(0)
    parameters = allocate_parameters(
        config, dtype=torch.bfloat16, device="cpu", kernels=kernels, scheme=scheme, plan=plan
    )
    for part in checkpoint_parts(parameters):
        shape = _taken_shape(part)
        part.take(torch.ones(shape).bfloat16() if len(shape) == 1 else random_tensor(*shape))
    rope = make_rope(config)
    return Decoder(config, pack_model(config, parameters, rope), kernels, plan=plan)


def _taken_shape(part: Part) -> tuple[int, ...]:
    """The shape of what a part takes of its tensor."""
    if len(part.shape) == 1:
        return part.shape if part.rows is None else (len(part.rows),)
    rows, columns = part.shape
    return (
        rows if part.rows is None else len(part.rows),
        columns if part.columns is None else len(part.columns),
    )


def make_rope(config: DecoderConfig) -> RopeTable:
    """Cosines and sines in bfloat16."""
    return RopeTable(
        config.rope,
        head_dim=config.head_dim,
        num_positions=MAX_POSITIONS,
        dtype=torch.bfloat16,
        device="cpu",
    )


def cache_layout(config: DecoderConfig, dtype: torch.dtype, num_layers: int = 0) -> CacheLayout:
    """Of all layers, or of so many."""
    return CacheLayout(
        num_layers=num_layers or config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=str(dtype).removeprefix("torch."),
        block_size=BLOCK_SIZE,
    )


def make_cache(config: DecoderConfig, batch: Batch, dtype: torch.dtype = torch.bfloat16) -> KVCache:
    """Blocks for the batch, in bfloat16 or int8, filled."""
    num_blocks = len(batch.layout().blocks)
    cache = allocate_kv_cache(cache_layout(config, dtype), num_blocks=num_blocks, device="cpu")
    if dtype == torch.int8:
        for part in cache.blocks.flatten(0, 1):
            kv_int8.values_of(part).random_(-127, 128)
            kv_int8.scales_of(part).fill_(1 / 32)
    else:
        cache.blocks.normal_()
    return cache
