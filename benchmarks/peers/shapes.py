"""The models that engines are compared on, as numbers: what they weigh and what a token costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from benchmarks.serving.errors import WrongUsage

BYTES: Final = 2
"""Of a bfloat16 value."""
MAX_POSITIONS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of Qwen3's kind: grouped heads, norms on queries and keys, gated MLP, tied head."""

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int

    @property
    def gemms(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs) of one layer's products: qkv, attention output, gate and up, down."""
        queries = self.num_heads * self.head_size
        keys = self.num_kv_heads * self.head_size
        return (
            (queries + 2 * keys, self.hidden_size),
            (self.hidden_size, queries),
            (2 * self.intermediate_size, self.hidden_size),
            (self.hidden_size, self.intermediate_size),
        )

    @property
    def linear_parameters(self) -> int:
        """Weights of all layers' products; a token costs two operations for each of them."""
        return self.num_layers * sum(outputs * inputs for outputs, inputs in self.gemms)

    @property
    def head_parameters(self) -> int:
        """Weights of the head, which the embedding shares."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All weights, each once."""
        norms = self.num_layers * 2 * (self.hidden_size + self.head_size) + self.hidden_size
        return self.linear_parameters + self.head_parameters + norms

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in bfloat16."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_size * BYTES

    def config(self) -> dict[str, Any]:
        """Content of config.json."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": MAX_POSITIONS,
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": self.vocab_size,
        }


_M: Final = ModelShape(
    name="M",
    hidden_size=1024,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_size=128,
    intermediate_size=3072,
    vocab_size=32000,
)
SHAPES: Final[Mapping[str, ModelShape]] = {
    "S": ModelShape(
        name="S",
        hidden_size=512,
        num_layers=8,
        num_heads=8,
        num_kv_heads=4,
        head_size=64,
        intermediate_size=1536,
        vocab_size=8192,
    ),
    "M": _M,
    # The shape of Qwen3-0.6B: M with the vocabulary that most models have by now.
    "Q": replace(_M, name="Q", vocab_size=151_936),
}


def find_shape(name: str) -> ModelShape:
    """The shape of that name.

    Raises:
        WrongUsage: there is none.
    """
    if name not in SHAPES:
        raise WrongUsage(f"Unknown model '{name}'; it must be one of {', '.join(SHAPES)}.")
    return SHAPES[name]
