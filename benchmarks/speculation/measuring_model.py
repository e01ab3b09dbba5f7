"""A large model that says what a small one says: the small one's function in a larger shape.

The weights of the small model stand in the first layers and columns of the large one; all that is
beside them is random and multiplied by zeros, or adds zeros. So a model of 473 million parameters
answers questions as tandem-tiny does, and costs what its size costs: speculation can be measured
without training one.

    hidden values     the small ones, then zeros; RMS norms divide by the mean over all of them, so
                      their weights carry sqrt(small / large)
    heads             the first dimensions of each rotary pair; scores are divided by the root of
                      the head size, so the norms of queries carry that root's ratio
    KV heads          each small one as often as its query heads need it
    layers            those behind the small model's add nothing: their outputs are multiplied by 0
    vocabulary        tokens behind the small model's are copies of one that it never says
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.peers.shapes import ModelShape

_SEED: Final = 0
_SCALE: Final = 0.02
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_SILENT: Final = "pad_token_id"
"""Of the small model's config.json: a token that it never says."""


@dataclass(frozen=True, slots=True)
class _Small:
    """The small model's shape and weights."""

    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> int:
        return int(self.config[name])

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self["num_attention_heads"] // self["num_key_value_heads"]


def make_measuring_model(
    small: Path, shape: ModelShape, path: Path, *, progress: Callable[[str], None] = lambda _: None
) -> Path:
    """Write the checkpoint, unless it is there.

    Args:
        small: A checkpoint of Qwen3 in one file, with tied embeddings.
        shape: The large shape.
        path: Folder of the checkpoint.
        progress: Called with the name of each tensor.

    Raises:
        ValueError: The small model does not fit the shape.
    """
    if (path / "model.safetensors").is_file():
        return path
    config = json.loads((small / "config.json").read_text(encoding="utf-8"))
    source = _Small(config, load_file(small / "model.safetensors"))
    _check(source, shape)
    path.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER:
        if (small / name).is_file():
            shutil.copy(small / name, path / name)
    document = {**config, **_sizes(source, shape)}
    (path / "config.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    weights = _embed(source, shape, progress)
    # Written last and moved into place: where it is, the rest is.
    part = path / "model.safetensors.part"
    save_file(weights, part, metadata={"format": "pt"})
    part.replace(path / "model.safetensors")
    return path


def _check(small: _Small, shape: ModelShape) -> None:
    fits = (
        small["hidden_size"] <= shape.hidden_size
        and small["num_hidden_layers"] <= shape.num_layers
        and small["intermediate_size"] <= shape.intermediate_size
        and small["vocab_size"] <= shape.vocab_size
        and len(_kv_heads(small, shape)) <= shape.num_kv_heads
        and shape.head_size % small["head_dim"] == 0
    )
    if not fits or not small.config["tie_word_embeddings"]:
        raise ValueError(f"the model does not fit the shape {shape.name}: its sizes are larger.")


def _sizes(small: _Small, shape: ModelShape) -> dict[str, Any]:
    layers = shape.num_layers
    return {
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": layers,
        "max_window_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "rms_norm_eps": small.config["rms_norm_eps"] * small["hidden_size"] / shape.hidden_size,
    }


def _kv_heads(small: _Small, shape: ModelShape) -> list[int]:
    """Return the KV head of the small model that each used one of the large model is a copy of."""
    copies = -(-small.group // (shape.num_heads // shape.num_kv_heads))
    return [head for head in range(small["num_key_value_heads"]) for _ in range(copies)]


def _query_heads(small: _Small, shape: ModelShape) -> list[int]:
    """Return the large model's head of each query head of the small one."""
    group = shape.num_heads // shape.num_kv_heads
    copies = -(-small.group // group)
    return [
        (head // small.group * copies + head % small.group // group) * group
        + head % small.group % group
        for head in range(small["num_attention_heads"])
    ]


def _embed(small: _Small, shape: ModelShape, progress: Callable[[str], None]) -> dict[str, Tensor]:
    """Return the tensors of the large model."""
    chance = torch.Generator().manual_seed(_SEED)
    weights = {
        "model.embed_tokens.weight": _embedding(small, shape),
        "model.norm.weight": _norm(small, shape, "model.norm.weight"),
    }
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        progress(prefix)
        random = _random_layer(shape, chance)
        if layer < small["num_hidden_layers"]:
            _fill_attention(random, small, shape, prefix)
            _fill_mlp(random, small, prefix)
            for name in ("input_layernorm", "post_attention_layernorm"):
                random[name] = _norm(small, shape, f"{prefix}{name}.weight")
        weights |= {f"{prefix}{name}.weight": weight for name, weight in random.items()}
    dtype = small.weights["model.embed_tokens.weight"].dtype
    return {name: weight.to(dtype).contiguous() for name, weight in weights.items()}


def _embedding(small: _Small, shape: ModelShape) -> Tensor:
    table = small.weights["model.embed_tokens.weight"].float()
    large = torch.zeros(shape.vocab_size, shape.hidden_size)
    large[:, : small["hidden_size"]] = table[small[_SILENT]]
    large[: len(table), : small["hidden_size"]] = table
    return large


def _norm(small: _Small, shape: ModelShape, name: str) -> Tensor:
    hidden = small["hidden_size"]
    large = torch.ones(shape.hidden_size)
    large[:hidden] = small.weights[name].float() * sqrt(hidden / shape.hidden_size)
    return large


def _random_layer(shape: ModelShape, chance: torch.Generator) -> dict[str, Tensor]:
    """Return a layer that adds nothing, with the work of one that does."""
    queries = shape.num_heads * shape.head_size
    keys = shape.num_kv_heads * shape.head_size
    hidden, width = shape.hidden_size, shape.intermediate_size

    def random(outputs: int) -> Tensor:
        return torch.randn((outputs, hidden), generator=chance) * _SCALE

    return {
        "self_attn.q_proj": random(queries),
        "self_attn.k_proj": random(keys),
        "self_attn.v_proj": random(keys),
        "self_attn.o_proj": torch.zeros(hidden, queries),
        "self_attn.q_norm": torch.ones(shape.head_size),
        "self_attn.k_norm": torch.ones(shape.head_size),
        "mlp.gate_proj": random(width),
        "mlp.up_proj": random(width),
        "mlp.down_proj": torch.zeros(hidden, width),
        "input_layernorm": torch.ones(hidden),
        "post_attention_layernorm": torch.ones(hidden),
    }


def _fill_attention(
    layer: dict[str, Tensor], small: _Small, shape: ModelShape, prefix: str
) -> None:
    hidden, size, large = small["hidden_size"], small["head_dim"], shape.head_size

    def of(name: str) -> Tensor:
        return small.weights[f"{prefix}self_attn.{name}.weight"].float()

    # Pair i of the small head turns as fast as pair i · large / small of the large one.
    rotary = [at * large // size for at in range(size // 2)]
    rotary += [large // 2 + at for at in rotary]
    for name, sources, columns in (
        ("q_proj", {head: at for at, head in enumerate(_query_heads(small, shape))}, rotary),
        ("k_proj", dict(enumerate(_kv_heads(small, shape))), rotary),
        ("v_proj", dict(enumerate(_kv_heads(small, shape))), list(range(size))),
    ):
        target, source = layer[f"self_attn.{name}"], of(name)
        for head, origin in sources.items():
            # What a head has beside the small one's must not count in its norm.
            target[head * large : (head + 1) * large] = 0.0
            rows = [head * large + column for column in columns]
            target[rows, :hidden] = source[origin * size : (origin + 1) * size]
    for origin, head in enumerate(_query_heads(small, shape)):
        layer["self_attn.o_proj"][:hidden, head * large : head * large + size] = of("o_proj")[
            :, origin * size : (origin + 1) * size
        ]
    layer["self_attn.q_norm"][rotary] = of("q_norm")
    layer["self_attn.k_norm"][rotary] = of("k_norm") / sqrt(large / size)


def _fill_mlp(layer: dict[str, Tensor], small: _Small, prefix: str) -> None:
    hidden, width = small["hidden_size"], small["intermediate_size"]
    for name in ("gate_proj", "up_proj"):
        layer[f"mlp.{name}"][:width, :hidden] = small.weights[f"{prefix}mlp.{name}.weight"].float()
    layer["mlp.down_proj"][:hidden, :width] = small.weights[f"{prefix}mlp.down_proj.weight"].float()
