"""A kind of layer is a function that yields its tensors: all else of loading follows from it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem_engine.api.config import Quantization
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.model import layer_tensors
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.model.layer_tensors import (
    LayerTensor,
    LinearTensor,
    NormTensor,
    by_columns,
    by_rows,
    grouped_query,
)
from tandem_engine.model.parameters import (
    AnyLinear,
    Layer,
    Parameters,
    allocate_parameters,
    checkpoint_parts,
)
from tandem_engine.model.rank_memory import shapes_of
from tandem_engine.parallel.plan import ParallelShape, RankPlan, plan_rank
from tandem_engine.quantization.read import resolve_scheme
from tandem_engine.weights.checkpoint import Checkpoint
from tandem_engine.weights.fill import fill

RUNTIME = CpuRuntime(memory_bytes=1 << 30, kernels="reference")  # keeps weights as they are
TP = 2
_OF_8_BITS = 0.02
"""Largest difference of a weight in 8 bits; those here are up to about 0.1."""


def ungated(config: DecoderConfig, plan: RankPlan, prefix: str) -> Iterator[LayerTensor]:
    """A feed-forward layer without a gate, and with a norm behind it: no model of ours has it."""
    mlp, width = f"{prefix}.mlp", config.intermediate_size
    yield LinearTensor(
        field="up",
        projections=(by_rows(config, f"{mlp}.up_proj", plan.intermediate, outputs=width),),
        has_bias=False,
    )
    yield LinearTensor(
        field="down",
        projections=(by_columns(config, f"{mlp}.down_proj", plan.intermediate, inputs=width),),
        has_bias=False,
        is_sum=True,
    )
    yield NormTensor(
        field="after", name=f"{prefix}.post_attention_layernorm", width=config.hidden_size
    )


@pytest.fixture
def folder(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A checkpoint whose layers are of this kind."""
    monkeypatch.setattr(layer_tensors, "kinds_of", lambda _: (grouped_query, ungated))
    folder = tmp_path / "ungated"
    shutil.copytree(make_checkpoint("Qwen3ForCausalLM"), folder)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "gate_proj" not in name}
    save_file(kept, folder / "model.safetensors")
    return folder


def loaded(folder: Path, rank: int, quantization: Quantization) -> Parameters:
    """Parameters of a rank, filled from the checkpoint."""
    model = read_decoder_config(folder)
    parameters = allocate_parameters(
        model,
        dtype=torch.float32,
        device="cpu",
        kernels=RUNTIME.kernels,
        scheme=resolve_scheme(quantization, folder),
        plan=plan_rank(ParallelShape(tp=TP), model, rank),
    )
    with Checkpoint.open(folder) as checkpoint:
        parts = list(checkpoint_parts(parameters, frozenset(checkpoint.names())))
        fill(checkpoint, parts, is_harmless=lambda _: False)
    return parameters


def weight(layer: Layer, field: str) -> Tensor:
    """The weight of a linear layer, whatever it is kept in."""
    linear = layer.held[field]
    assert not isinstance(linear, Tensor)
    return RUNTIME.kernels.linear(torch.eye(linear.inputs), linear.finished()).T


@pytest.mark.parametrize("quantization", ["auto", "w8a8"])
def test_a_kind_is_loaded_cut_and_quantised_by_its_declaration(
    folder: Path, quantization: Quantization
) -> None:
    whole = load_file(folder / "model.safetensors")
    ranks = [loaded(folder, rank, quantization).layers[1] for rank in range(TP)]

    prefix = "model.layers.1"
    up = torch.cat([weight(layer, "up") for layer in ranks])
    down = torch.cat([weight(layer, "down") for layer in ranks], dim=1)
    most = _OF_8_BITS if quantization == "w8a8" else 0.0
    torch.testing.assert_close(up, whole[f"{prefix}.mlp.up_proj.weight"], atol=most, rtol=0.0)
    torch.testing.assert_close(down, whole[f"{prefix}.mlp.down_proj.weight"], atol=most, rtol=0.0)
    norm = whole[f"{prefix}.post_attention_layernorm.weight"]
    assert all(torch.equal(held(layer, "after"), norm) for layer in ranks)


def held(layer: Layer, field: str) -> Tensor:
    tensor = layer.held[field]
    assert isinstance(tensor, Tensor)
    return tensor


@pytest.mark.parametrize("quantization", ["auto", "w8a8"])
def test_a_kind_is_counted_before_it_is_loaded(folder: Path, quantization: Quantization) -> None:
    model = read_decoder_config(folder)
    plan = plan_rank(ParallelShape(tp=TP), model, 0)
    shapes = shapes_of(model, folder, plan=plan, dtype="float32", quantization=quantization)

    assert shapes.num_bytes == loaded(folder, 0, quantization).num_bytes
    own = [linear for layer in shapes.layers for linear in layer.linears()]
    assert [names(linear) for linear in own[-2:]] == [("up_proj",), ("down_proj",)]


def names(linear: AnyLinear) -> tuple[str, ...]:
    return tuple(name.rpartition(".")[2] for name in linear.names)
