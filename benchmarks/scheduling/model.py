"""A checkpoint with random weights, made on the fly: its answers mean nothing, its times do."""

import json
from pathlib import Path
from typing import Final

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
    intermediate, vocabulary = hidden_size * 3, 4096
    kv_size = hidden_size // 4
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden_size),
    }
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (hidden_size, hidden_size),
            f"{prefix}self_attn.k_proj.weight": (kv_size, hidden_size),
            f"{prefix}self_attn.v_proj.weight": (kv_size, hidden_size),
            f"{prefix}self_attn.o_proj.weight": (hidden_size, hidden_size),
            f"{prefix}mlp.gate_proj.weight": (intermediate, hidden_size),
            f"{prefix}mlp.up_proj.weight": (intermediate, hidden_size),
            f"{prefix}mlp.down_proj.weight": (hidden_size, intermediate),
            f"{prefix}input_layernorm.weight": (hidden_size,),
            f"{prefix}post_attention_layernorm.weight": (hidden_size,),
        }
    shapes["model.norm.weight"] = (hidden_size,)
    chance = torch.Generator().manual_seed(0)
    weights = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=chance) * _SCALE
        for name, shape in shapes.items()
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // _HEAD,
        "num_key_value_heads": kv_size // _HEAD,
        "head_dim": _HEAD,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": vocabulary,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(weights, folder / "model.safetensors")
    return sum(weight.numel() for weight in weights.values())
