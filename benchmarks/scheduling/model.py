"""Checkpoints with random weights, made on the fly: their answers mean nothing, their times do."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

_HEAD: Final = 64
_SCALE: Final = 0.02


def make_checkpoint(
    folder: Path, *, hidden_size: int = 512, num_layers: int = 8, max_positions: int = 4096
) -> int:
    """Write config.json and model.safetensors of a Llama in `folder`; return its parameters.

    The defaults make about 30 million.
    """
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 3,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // _HEAD,
        "num_key_value_heads": hidden_size // 4 // _HEAD,
        "head_dim": _HEAD,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 4096,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return write_checkpoint(folder, config)


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> int:
    """Write config.json and model.safetensors of a Llama or Qwen3; return its parameters.

    The same seed gives the same file: matrices are normal with a deviation of 0.02, norms are 1.

    Args:
        folder: Made where it is missing.
        config: Content of config.json; embeddings must be tied.
        dtype: Of the file.
        seed: Decides the weights.
        progress: Called with the name of each tensor.
    """
    chance = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in _tensor_shapes(config).items():
        progress(name)
        weights[name] = (
            torch.ones(shape, dtype=dtype)
            if len(shape) == 1
            else (torch.randn(shape, generator=chance) * _SCALE).to(dtype)
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # Some readers, transformers among them, refuse a file that does not say who made it.
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(weight.numel() for weight in weights.values())


def _tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (queries, hidden),
            f"{prefix}self_attn.k_proj.weight": (keys, hidden),
            f"{prefix}self_attn.v_proj.weight": (keys, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, queries),
            f"{prefix}mlp.gate_proj.weight": (intermediate, hidden),
            f"{prefix}mlp.up_proj.weight": (intermediate, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, intermediate),
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
        }
        if config["model_type"] == "qwen3":
            shapes |= {
                f"{prefix}self_attn.q_norm.weight": (head,),
                f"{prefix}self_attn.k_norm.weight": (head,),
            }
    shapes["model.norm.weight"] = (hidden,)
    return shapes
