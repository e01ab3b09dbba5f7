"""Sound checkpoints of every kind that is read, as plain data that `damage` changes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.conftest import CHAT_TEMPLATE, SPECIAL_TOKENS, byte_symbols
from tests.unit.engine.quantized_checkpoints import CONFIG as COMPRESSED_TENSORS

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MODELSLIM, DESCRIPTION = "quant_model_weight_w8a8.safetensors", "quant_model_description.json"

VOCAB, HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 272, 16, 24, 2, 2, 1, 8
DTYPES: Final = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
}
ROPES: Final[tuple[dict[str, Any] | None, ...]] = (
    None,
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {
        "rope_type": "longrope",
        "short_factor": [1.0] * (HEAD_DIM // 2),
        "long_factor": [2.0] * (HEAD_DIM // 2),
        "original_max_position_embeddings": 64,
    },
)


@dataclass
class TensorFile:
    """One safetensors file: what its header says, and the bytes behind it."""

    header: dict[str, Any]
    data: bytes

    def raw(self) -> bytes:
        text = to_json(self.header)
        return len(text).to_bytes(8, "little") + text + self.data


@dataclass
class Draft:
    """A checkpoint before it is written."""

    documents: dict[str, Any]
    """File → the JSON value that it holds."""
    tensors: dict[str, TensorFile]
    raw: dict[str, bytes] = field(default_factory=dict)
    """File → its bytes, in place of what it would hold."""
    gone: set[str] = field(default_factory=set)
    """Files that are left out."""
    folders: set[str] = field(default_factory=set)
    """Files that are folders instead."""

    @property
    def names(self) -> list[str]:
        return sorted({*self.documents, *self.tensors})

    def bytes_of(self, name: str) -> bytes:
        if name in self.raw:
            return self.raw[name]
        return self.tensors[name].raw() if name in self.tensors else to_json(self.documents[name])

    def write(self, folder: Path) -> None:
        for name in self.names:
            if name in self.folders:
                (folder / name).mkdir()
            elif name not in self.gone:
                (folder / name).write_bytes(self.bytes_of(name))


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


@st.composite
def sound(draw: st.DrawFn) -> Draft:
    """One that loads."""
    kind = draw(st.sampled_from(["float", "compressed-tensors", "modelslim"]))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))
    architecture = draw(
        st.sampled_from(["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
    )
    is_tied = draw(st.booleans())
    config = _config(architecture, dtype, draw(st.sampled_from(ROPES)), is_tied=is_tied)
    tensors = _float_tensors(architecture, dtype, is_tied=is_tied)
    documents: dict[str, Any] = {
        CONFIG: config,
        TOKENIZER: _tokenizer(),
        TOKENIZER_CONFIG: _tokenizer_config(),
    }
    if draw(st.booleans()):
        documents[GENERATION] = {"eos_token_id": [256, 260], "temperature": 0.6}
    if kind == "compressed-tensors":
        config["quantization_config"] = json.loads(json.dumps(COMPRESSED_TENSORS))
        _quantize(tensors, dict.fromkeys(_linears(tensors), "W8A8_DYNAMIC"), with_offset=False)
    if kind == "modelslim":
        kinds = {name: _kind_of(name) for name in _linears(tensors)}
        _quantize(tensors, kinds, with_offset=True)
        documents[DESCRIPTION] = _description(tensors, kinds)
        return Draft(documents, {MODELSLIM: _file(tensors)})
    if draw(st.booleans()):
        return Draft(documents, {SINGLE: _file(tensors)})
    return _sharded(documents, tensors)


def _sharded(documents: dict[str, Any], tensors: Mapping[str, Tensor]) -> Draft:
    names = sorted(tensors)
    half = len(names) // 2
    shards = {
        f"model-0000{number}-of-00002.safetensors": part
        for number, part in enumerate((names[:half], names[half:]), start=1)
    }
    documents[INDEX] = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {name: file for file, part in shards.items() for name in part},
    }
    files = {file: _file({name: tensors[name] for name in part}) for file, part in shards.items()}
    return Draft(documents, files)


def _config(
    architecture: str, dtype: torch.dtype, rope: Mapping[str, Any] | None, *, is_tied: bool
) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None if rope is None else dict(rope),
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": is_tied,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": 260,
    }


def _float_tensors(architecture: str, dtype: torch.dtype, *, is_tied: bool) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(0)

    def tensor(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=chance).mul_(0.1).to(dtype)

    tensors = {"model.embed_tokens.weight": tensor(VOCAB, HIDDEN)}
    for number in range(LAYERS):
        prefix = f"model.layers.{number}"
        widths = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
        for name, width in widths.items():
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = tensor(width, HIDDEN)
            if architecture == "Qwen2ForCausalLM":
                tensors[f"{prefix}.self_attn.{name}_proj.bias"] = tensor(width)
        tensors[f"{prefix}.self_attn.o_proj.weight"] = tensor(HIDDEN, HEADS * HEAD_DIM)
        if architecture == "Qwen3ForCausalLM":
            tensors[f"{prefix}.self_attn.q_norm.weight"] = tensor(HEAD_DIM)
            tensors[f"{prefix}.self_attn.k_norm.weight"] = tensor(HEAD_DIM)
        for name in ("gate", "up"):
            tensors[f"{prefix}.mlp.{name}_proj.weight"] = tensor(INTERMEDIATE, HIDDEN)
        tensors[f"{prefix}.mlp.down_proj.weight"] = tensor(HIDDEN, INTERMEDIATE)
        for name in ("input", "post_attention"):
            tensors[f"{prefix}.{name}_layernorm.weight"] = tensor(HIDDEN)
    tensors["model.norm.weight"] = tensor(HIDDEN)
    if not is_tied:
        tensors["lm_head.weight"] = tensor(VOCAB, HIDDEN)
    return tensors


def _linears(tensors: Mapping[str, Tensor]) -> list[str]:
    return [name.removesuffix(".weight") for name in tensors if name.endswith("_proj.weight")]


def _kind_of(name: str) -> str:
    """Attention static, the first feed-forward layer dynamic, the second one in float."""
    if "self_attn" in name:
        return "W8A8"
    return "W8A8_DYNAMIC" if ".0." in name else "FLOAT"


def _quantize(tensors: dict[str, Tensor], kinds: Mapping[str, str], *, with_offset: bool) -> None:
    for name, kind in kinds.items():
        if kind == "FLOAT":
            continue
        weight = tensors[f"{name}.weight"].float()
        scales = weight.abs().amax(dim=1, keepdim=True) / 127
        rows = len(weight)
        tensors[f"{name}.weight"] = (weight / scales).round().to(torch.int8)
        tensors[f"{name}.weight_scale"] = scales
        if with_offset:
            tensors[f"{name}.weight_offset"] = torch.zeros(rows, 1)
        if kind == "W8A8":
            tensors.pop(f"{name}.bias", None)
            tensors[f"{name}.input_scale"] = torch.tensor([0.05])
            tensors[f"{name}.input_offset"] = torch.tensor([3.0])
            tensors[f"{name}.deq_scale"] = scales.flatten() * 0.05
            tensors[f"{name}.quant_bias"] = torch.zeros(rows, dtype=torch.int32)


def _description(tensors: Mapping[str, Tensor], kinds: Mapping[str, str]) -> dict[str, Any]:
    of_tensors = {name: kinds.get(name.rpartition(".")[0], "FLOAT") for name in tensors}
    return {"model_quant_type": "W8A8", **of_tensors}


def _file(tensors: Mapping[str, Tensor]) -> TensorFile:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    # The widest values first, as the library writes them: all of them are aligned.
    for name, tensor in sorted(tensors.items(), key=lambda pair: -pair[1].itemsize):
        content = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    return TensorFile(header, data)


def _tokenizer() -> dict[str, Any]:
    symbols = byte_symbols()
    added = [
        {
            "id": len(symbols) + number,
            "content": token,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for number, token in enumerate(SPECIAL_TOKENS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {},
        },
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "vocab": {symbol: byte for byte, symbol in enumerate(symbols)},
            "merges": [],
        },
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "bos_token": {"content": "<|endoftext|>", "lstrip": False},
        "eos_token": "<|end|>",
        "chat_template": CHAT_TEMPLATE,
    }
