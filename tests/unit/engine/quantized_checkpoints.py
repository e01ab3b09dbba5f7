"""Checkpoints in 8 bits for tests: made by hand, and read as kernels get them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.reference.int8_linear import Int8Linear, WholeInt8Packing
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.quantization.int8 import Int8Weight, StaticInput

LINEARS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
WEIGHTS = {
    "num_bits": 8,
    "type": "int",
    "strategy": "channel",
    "symmetric": True,
    "dynamic": False,
    "observer": "minmax",
    "group_size": None,
}
ACTIVATIONS = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True} | {
    "dynamic": True,
    "observer": None,
}
GROUP = {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": ACTIVATIONS}
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": GROUP},
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "version": "0.12.2",
}


class Recorder(ReferenceKernels):
    """Kernels that keep what they were handed in 8 bits."""

    def __init__(self) -> None:
        self.packed: list[Int8Weight] = []

    def packing_int8(
        self,
        outputs: int,
        inputs: int,
        device: torch.device | str,
        *,
        is_static: bool,  # noqa: ARG002
    ) -> WholeInt8Packing:
        return RecordedPacking(self.packed, outputs, inputs, device)


class RecordedPacking(WholeInt8Packing):
    """One that notes what it is made of."""

    def __init__(self, packed: list[Int8Weight], *shape: Any) -> None:
        super().__init__(*shape)
        self._packed = packed

    def finish(self, scales: Tensor, bias: Tensor | None, static: StaticInput | None) -> Int8Linear:
        self._packed.append(Int8Weight(self._values, scales, bias, static))
        return super().finish(scales, bias, static)


def load(folder: Path, quantization: Any = "auto") -> tuple[Decoder, list[Int8Weight]]:
    """A decoder, and its layers in 8 bits: QKV, output, gate and up, down of each layer; head."""
    runtime = CpuRuntime(memory_bytes=1 << 30, kernels="reference")
    recorder = Recorder()
    runtime.kernels = recorder
    return load_decoder(folder, runtime=runtime, quantization=quantization), recorder.packed


def linear_names(num_layers: int = 2) -> list[str]:
    return [f"model.layers.{layer}.{name}" for layer in range(num_layers) for name in LINEARS]


def rewrite(
    folder: Path,
    change: Callable[[dict[str, Tensor]], None],
    file: str = "model.safetensors",
) -> None:
    """Save the tensors again after `change`."""
    path = folder / file
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def describe(folder: Path, config: Mapping[str, Any] | None = None, **fields: Any) -> None:
    """Write a quantization_config into config.json; `fields` are other fields of config.json."""
    path = folder / "config.json"
    document = json.loads(path.read_text()) | fields
    if config is not None:
        document["quantization_config"] = config
    path.write_text(json.dumps(document))


def to_int8(tensors: dict[str, Tensor], *names: str) -> None:
    """Weights that can be told apart: values from -128, and a scale of 1 / 64 and up by output."""
    for name in names:
        rows, columns = tensors[f"{name}.weight"].shape
        values = torch.arange(rows * columns).remainder(251).sub(128).view(rows, columns)
        tensors[f"{name}.weight"] = values.to(torch.int8)
        tensors[f"{name}.weight_scale"] = (torch.arange(rows).view(-1, 1) + 1.0).div(64).bfloat16()


def modelslim(folder: Path, kinds: Mapping[str, str], **fields: Any) -> Path:
    """Turn a checkpoint into one of msModelSlim: a layer's kind is that of all of its tensors."""

    def change(tensors: dict[str, Tensor]) -> None:
        for name, kind in kinds.items():
            if kind == "FLOAT":
                continue
            to_int8(tensors, name)
            rows = len(tensors[f"{name}.weight"])
            tensors[f"{name}.weight_offset"] = torch.zeros(rows, 1)
            if kind == "W8A8":
                tensors |= static_tensors(name, rows)

    rewrite(folder, change)
    names = load_file(folder / "model.safetensors")
    description = {name: kinds.get(name.rpartition(".")[0], "FLOAT") for name in names}
    path = folder / "quant_model_description.json"
    path.write_text(json.dumps({"model_quant_type": "W8A8", **fields, **description}))
    (folder / "model.safetensors").rename(folder / "quant_model_weight_w8a8.safetensors")
    return path


def to_static(folder: Path, kinds: Mapping[str, str], *, input_scale: float, offset: int) -> Path:
    """As `modelslim`, but layers of the kind W8A8 compute nearly what they did in float."""
    floats = load_file(folder / "model.safetensors")
    path = modelslim(folder, kinds)

    def change(tensors: dict[str, Tensor]) -> None:
        for name, kind in kinds.items():
            if kind == "FLOAT":
                continue
            weight = floats[f"{name}.weight"].float()
            scales = weight.abs().amax(dim=1) / 127
            values = (weight / scales[:, None]).round()
            tensors[f"{name}.weight"] = values.to(torch.int8)
            tensors[f"{name}.weight_scale"] = scales[:, None]
            if kind == "W8A8":
                tensors |= {
                    f"{name}.input_scale": torch.tensor([input_scale]),
                    f"{name}.input_offset": torch.tensor([float(offset)]),
                    f"{name}.deq_scale": scales * input_scale,
                    f"{name}.quant_bias": -offset * values.sum(dim=1).to(torch.int32),
                }

    rewrite(folder, change, "quant_model_weight_w8a8.safetensors")
    return path


def static_tensors(name: str, rows: int) -> dict[str, Tensor]:
    """Scales of activations, made up."""
    return {
        f"{name}.input_scale": torch.tensor([0.5]).bfloat16(),
        f"{name}.input_offset": torch.tensor([10.0]).bfloat16(),
        f"{name}.quant_bias": torch.arange(rows, dtype=torch.int32),
        f"{name}.deq_scale": torch.full((rows,), 0.25),
    }
