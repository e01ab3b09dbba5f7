"""Writes a checkpoint as a GGUF file: `gguf_file.py CHECKPOINT OUT bf16|q8_0`.

It runs under the interpreter that has llama-cpp-python; numpy and gguf are all that it needs, so
safetensors are read by hand.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTSIDE: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
}
_NORMAL_TOKEN: Final = 1


def write_gguf(checkpoint: Path, out: Path, kind: str) -> None:
    """Write `checkpoint`, a Qwen3 in bfloat16 with a tied head, to `out`.

    Args:
        checkpoint: The folder.
        out: The file; it appears when it is complete.
        kind: bf16, or q8_0 (blocks of 32 values with a scale).
    """
    import gguf  # type: ignore[import-not-found]  # noqa: PLC0415  # not in .venv

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    partial = out.with_name(f"{out.name}.partial")
    writer = gguf.GGUFWriter(str(partial), "qwen3")
    _write_facts(writer, config)
    types = gguf.GGMLQuantizationType
    matrices = types.BF16 if kind == "bf16" else types.Q8_0
    for name, values in _tensors(checkpoint / "model.safetensors"):
        kept = types.F32 if values.ndim == 1 else matrices
        data = values if values.ndim == 1 else gguf.quants.quantize(values, kept)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(out)


def _write_facts(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    # llama.cpp loads no file without a tokenizer; none of it is used.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    writer.add_token_types([_NORMAL_TOKEN] * config["vocab_size"])
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def _gguf_name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, _, number, rest = name.split(".", 3)
    return f"blk.{number}.{_LAYER[rest.removesuffix('.weight')]}.weight"


def _tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """Each tensor of a safetensors file in bfloat16, as float32."""
    import numpy as np  # noqa: PLC0415  # it comes with gguf

    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    data = np.memmap(file, dtype=np.uint8, mode="r", offset=8 + size)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        # bfloat16 is the upper half of float32.
        halves = data[begin:end].view(np.uint16).astype(np.uint32)
        yield name, (halves << 16).view(np.float32).reshape(entry["shape"])


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
