"""A decoder's shapes and constants, as the config.json of a checkpoint gives them.

Both layouts of Hugging Face are read: the one up to transformers 4 (torch_dtype, rope_theta,
rope_scaling) and the one from 5 (dtype, rope_parameters). What is asked for there and not
computed here is refused: a model that runs and is subtly wrong is worse than one that does not.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem_engine.documents import MOST_POSITIONS, WIDEST, Fields, read_config
from tandem_engine.model.not_computed import refuse_what_is_not_computed
from tandem_engine.model.rope import (
    Rope,
    RopeDefault,
    RopeDynamic,
    RopeLinear,
    RopeLlama3,
    RopeLong,
    RopeYarn,
)
from tandem_engine.model.tied_head import EMBEDDING, TiedHead, read_tied_head
from tandem_engine.weights.checkpoint import has_weights

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Shapes and constants of a decoder-only transformer."""

    architecture: str
    """Hugging Face's name of the class, such as Qwen3ForCausalLM."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the gated feed-forward layer."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Heads of K and V; divides num_heads."""
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    """Longest sequence that the checkpoint is made for, in tokens, its rope scaling counted in."""
    rope: Rope
    tie_word_embeddings: bool
    """True if the output head is the embedding."""
    embedding: str = EMBEDDING
    """Stem of the embedding's tensor; the head's name where the files hold the two under that."""
    disagreement: str = ""
    """A sentence about files that say otherwise than config.json; empty: none do."""
    qkv_bias: bool
    output_bias: bool
    """True if the projection after attention has a bias."""
    mlp_bias: bool
    qk_norm: bool
    """True if each head of Q and K is normalised before it is rotated."""
    dtype: str | None
    """One of DTYPES; None when the checkpoint does not name it."""

    @property
    def model_type(self) -> str:
        """Hugging Face's and MindIE's name of the architecture, such as qwen3."""
        return model_type_of(self.architecture)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Properties of an architecture that config.json omits, because its code has them."""

    qkv_bias: bool | None = None  # None: as attention_bias says
    output_bias: bool | None = None
    qk_norm: bool = False
    head_dim: int | None = None  # None: hidden_size / heads
    has_mlp_bias: bool = False


FAMILIES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family(has_mlp_bias=True),
    "Qwen2ForCausalLM": _Family(qkv_bias=True, output_bias=False),
    "Qwen3ForCausalLM": _Family(qk_norm=True, head_dim=128),
}


def read_decoder_config(folder: Path | str) -> DecoderConfig:
    """Read config.json of a checkpoint, and the files where they decide what it means.

    Raises:
        CheckpointError: A file is missing or garbled, a value cannot be, or the model needs
            something that this engine does not compute; the text names the file and the reason.
    """
    fields = read_config(Path(folder))
    architecture = _architecture(fields)
    family = FAMILIES[architecture]
    refuse_what_is_not_computed(fields, model_type_of(architecture))
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.error(
            f"{heads} attention heads cannot share {kv_heads} key-value heads evenly"
        )
    head_dim = _head_dim(fields, family, heads)
    rope = _rope(fields, head_dim)
    attention_bias = fields.flag("attention_bias")
    head = _head(Path(folder), fields)
    return DecoderConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=fields.count("intermediate_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        max_position_embeddings=_longest_sequence(fields, rope),
        rope=rope,
        tie_word_embeddings=head.is_tied,
        embedding=head.embedding,
        disagreement=head.disagreement,
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=family.has_mlp_bias and fields.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        dtype=_dtype(fields),
    )


def model_type_of(architecture: str) -> str:
    """Hugging Face's name of an architecture in config.json, such as qwen3 of Qwen3ForCausalLM."""
    return architecture.removesuffix("ForCausalLM").lower()


def _architecture(fields: Fields) -> str:
    named = fields.get("architectures")
    if not isinstance(named, list) or not named:
        raise fields.refuse("architectures", "a list of names")
    for name in named:
        if isinstance(name, str) and name in FAMILIES:
            return name
    raise fields.error(
        f"the architecture {', '.join(map(str, named))} is not known; "
        f"known are {', '.join(sorted(FAMILIES))}"
    )


def _head(folder: Path, fields: Fields) -> TiedHead:
    # A folder without weights, of which only the shapes are asked for, is as config.json says.
    if fields.flag("tie_word_embeddings") and has_weights(folder):
        return read_tied_head(folder)
    return TiedHead(is_tied=fields.flag("tie_word_embeddings"), embedding=EMBEDDING)


def _head_dim(fields: Fields, family: _Family, heads: int) -> int:
    head_dim = fields.count("head_dim", family.head_dim or fields.count("hidden_size") // heads)
    if head_dim % 2:
        raise fields.error(f"head_dim is {head_dim}; it must be even to be rotated")
    if heads * head_dim > WIDEST:
        raise fields.error(
            f"{heads} attention heads of {head_dim} are {heads * head_dim} wide, "
            f"which must be at most {WIDEST}"
        )
    return head_dim


def _dtype(fields: Fields) -> str | None:
    value = fields.get("dtype") or fields.get("torch_dtype")
    if value is None:
        return None
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise fields.error(f"dtype is {json.dumps(value)}, not one of {', '.join(DTYPES)}")
    return name


def _longest_sequence(fields: Fields, rope: Rope) -> int:
    """Tokens up to which the rope scaling extends the model.

    As in vLLM: max_position_embeddings is what the model saw with linear and dynamic scaling, what
    it was extended to with Llama 3's and LongRoPE, and either of them with YaRN, whose factor
    counts from original_max_position_embeddings.
    """
    written = fields.positions("max_position_embeddings")
    match rope:
        case RopeLinear(factor=factor) | RopeDynamic(factor=factor):
            extended = written * factor
        case RopeYarn(factor=factor, original_max_position_embeddings=original):
            extended = max(written, original * factor)
        case _:
            extended = written
    if extended > MOST_POSITIONS:
        raise fields.error(
            f"max_position_embeddings, rope scaling counted in, is {extended:.6g}; "
            f"it must be at most {MOST_POSITIONS}"
        )
    return int(extended)


def _rope(fields: Fields, head_dim: int) -> Rope:
    """Read rope_parameters (transformers 5) or rope_scaling beside rope_theta (before)."""
    max_positions = fields.positions("max_position_embeddings")
    key = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    values = fields.get(key) or {}
    if not isinstance(values, dict):
        raise fields.refuse(key, "an object")
    scaling = Fields(fields.path, values, f"{key}.")
    if scaling.get("partial_rotary_factor") not in (None, 1):
        raise fields.error(f"{key}.partial_rotary_factor is not 1; only whole heads are rotated")
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10000.0))
    # The field beside the object goes first, as in transformers.
    original = fields.get("original_max_position_embeddings") and fields.positions(
        "original_max_position_embeddings"
    )
    original = original or scaling.positions("original_max_position_embeddings", max_positions)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    match kind:
        case "default":
            return RopeDefault(theta=theta)
        case "linear":
            return RopeLinear(theta=theta, factor=scaling.number("factor"))
        case "dynamic":
            return _dynamic(scaling, theta, max_positions, head_dim)
        case "longrope":
            return _longrope(scaling, theta, original, max_positions, head_dim)
        case "llama3":
            return _llama3(scaling, theta, original)
        case "yarn":
            return _yarn(scaling, theta, original, max_positions)
    raise fields.error(
        f"the rope type {json.dumps(kind)} is not computed; "
        "computed are default, dynamic, linear, llama3, longrope and yarn"
    )


def _llama3(scaling: Fields, theta: float, original: int) -> RopeLlama3:
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if high <= low:
        raise scaling.error(f"high_freq_factor {high} is not above low_freq_factor {low}")
    return RopeLlama3(
        theta=theta,
        factor=scaling.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )


def _dynamic(scaling: Fields, theta: float, max_positions: int, head_dim: int) -> RopeDynamic:
    factor = scaling.number("factor")
    if factor < 1:
        raise scaling.refuse("factor", "a number from 1")
    if head_dim // 2 <= 1:  # the exponent divides by head_dim - 2
        raise scaling.error(f"head_dim is {head_dim}; a dynamic rope needs at least 4")
    return RopeDynamic(theta=theta, factor=factor, max_position_embeddings=max_positions)


def _longrope(
    scaling: Fields, theta: float, original: int, max_positions: int, head_dim: int
) -> RopeLong:
    if original <= 1:  # the amplitude divides by its logarithm
        raise scaling.error(f"original_max_position_embeddings is {original}, not above 1")
    return RopeLong(
        theta=theta,
        short_factor=scaling.numbers("short_factor", head_dim // 2),
        long_factor=scaling.numbers("long_factor", head_dim // 2),
        factor=scaling.number("factor", max_positions / original),
        original_max_position_embeddings=original,
        attention_factor=scaling.optional("attention_factor"),
    )


def _yarn(scaling: Fields, theta: float, original: int, max_positions: int) -> RopeYarn:
    if theta <= 1:  # the ramp divides by its logarithm
        raise scaling.error(f"rope_theta is {theta}; YaRN needs one above 1")
    return RopeYarn(
        theta=theta,
        factor=scaling.number("factor", max_positions / original),
        original_max_position_embeddings=original,
        attention_factor=scaling.optional("attention_factor"),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        mscale=scaling.optional("mscale"),
        mscale_all_dim=scaling.optional("mscale_all_dim"),
        truncate=scaling.flag("truncate", default=True),
    )
