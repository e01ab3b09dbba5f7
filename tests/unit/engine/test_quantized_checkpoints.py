"""Checkpoints in 8 bits: what is read of them, by hand, and what is refused."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem_engine.api.errors import CheckpointError, ConfigError
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.model.projection import Projection
from tandem_engine.model.quantized import allocate_quantized
from tandem_engine.quantization.int8 import StaticInput
from tandem_engine.quantization.scheme import Format, LinearKind, Scheme
from tests.unit.engine.quantized_checkpoints import (
    ACTIVATIONS,
    CONFIG,
    GROUP,
    WEIGHTS,
    describe,
    linear_names,
    load,
    modelslim,
    rewrite,
    to_int8,
)

MakeCheckpoint = Callable[..., Path]
FIRST = "model.layers.0.self_attn"


@pytest.fixture
def folder(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> Path:
    """A checkpoint in float that a test may change: biases on Q, K and V, a head of its own."""
    return shutil.copytree(make_checkpoint("Qwen2ForCausalLM"), tmp_path / "model")


@pytest.fixture
def compressed(folder: Path) -> Path:
    """The same in 8 bits, by hand."""
    rewrite(folder, lambda tensors: to_int8(tensors, *linear_names()))
    describe(folder, CONFIG)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value)


def test_compressed_tensors_are_read_as_they_are(compressed: Path) -> None:
    tensors = load_file(compressed / "model.safetensors")

    decoder, packed = load(compressed)

    qkv = packed[0]
    names = [f"{FIRST}.{name}_proj" for name in "qkv"]
    assert len(packed) == 8
    assert torch.equal(qkv.values, torch.cat([tensors[f"{name}.weight"] for name in names]))
    scales = torch.cat([tensors[f"{name}.weight_scale"].float().flatten() for name in names])
    assert torch.equal(qkv.scales, scales)
    assert qkv.bias is not None
    assert torch.equal(qkv.bias, torch.cat([tensors[f"{name}.bias"] for name in names]))
    assert qkv.static is None
    assert packed[1].bias is None
    assert decoder.dtype == torch.float32
    assert decoder.quantization == (
        "Quantization: W8A8, 14 of 15 linear layers in 8 bits (0.1 MiB), "
        "of a compressed-tensors checkpoint"
    )


def test_layers_that_are_ignored_stay_in_float(folder: Path) -> None:
    ignored = [name for name in linear_names() if "down" in name or ".1.self_attn" in name]
    quantized = [name for name in linear_names() if name not in ignored]
    rewrite(folder, lambda tensors: to_int8(tensors, *quantized))
    patterns = ["lm_head", "re:.*down_proj", *[name for name in ignored if "self_attn" in name]]
    describe(folder, {**CONFIG, "ignore": patterns})

    _, packed = load(folder)

    # QKV, output, gate and up of the first layer; gate and up of the second.
    assert [tuple(layer.values.shape) for layer in packed] == [
        (128, 64),
        (64, 64),
        (192, 64),
        (192, 64),
    ]


def test_a_head_in_8_bits_is_read(folder: Path) -> None:
    rewrite(folder, lambda tensors: to_int8(tensors, *linear_names(), "lm_head"))
    targets = ["re:model.layers.*_proj", "lm_head"]
    describe(
        folder, {**CONFIG, "config_groups": {"g": {**GROUP, "targets": targets}}, "ignore": []}
    )

    _, packed = load(folder)

    assert packed[-1].values.shape == (272, 64)


def config_with(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, **changes}


def group_with(**changes: Any) -> dict[str, Any]:
    return config_with(config_groups={"group_0": {**GROUP, **changes}})


AT_GROUP = "quantization_config.config_groups.group_0"
# Each group may take any part of a layer's name.
BACKTRACKS = "(.*)" * 10 + r"\1\2\3\4\5[!?]"
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "another method": (
        {"quant_method": "awq"},
        'quantization_config.quant_method is "awq"; supported are compressed-tensors',
    ),
    "another format": (
        config_with(format="pack-quantized"),
        'quantization_config.format is "pack-quantized"; supported is "int-quantized"',
    ),
    "another format of a group": (
        group_with(format="float-quantized"),
        f'{AT_GROUP}.format is "float-quantized"; supported is int-quantized',
    ),
    "4 bits": (
        group_with(weights={**WEIGHTS, "num_bits": 4}),
        f"{AT_GROUP}.weights.num_bits is 4; supported is 8",
    ),
    "float of 8 bits": (
        group_with(weights={**WEIGHTS, "type": "float"}),
        f'{AT_GROUP}.weights.type is "float"; supported is "int"',
    ),
    "a scale for the tensor": (
        group_with(weights={**WEIGHTS, "strategy": "tensor"}),
        f'{AT_GROUP}.weights.strategy is "tensor"; supported is "channel"',
    ),
    "groups of weights": (
        group_with(weights={**WEIGHTS, "group_size": 128}),
        f"{AT_GROUP}.weights.group_size is 128; supported is null",
    ),
    "weights with offsets": (
        group_with(weights={**WEIGHTS, "symmetric": False}),
        f"{AT_GROUP}.weights.symmetric is false; supported is true",
    ),
    "activations in float": (
        group_with(input_activations=None),
        f"{AT_GROUP}.input_activations is null; supported is an object that says int8",
    ),
    "static activations": (
        group_with(input_activations={**ACTIVATIONS, "strategy": "tensor", "dynamic": False}),
        f'{AT_GROUP}.input_activations.strategy is "tensor"; supported is "token"',
    ),
    "activations with offsets": (
        group_with(input_activations={**ACTIVATIONS, "symmetric": False}),
        f"{AT_GROUP}.input_activations.symmetric is false; supported is true",
    ),
    "dynamic in part": (
        group_with(input_activations={**ACTIVATIONS, "dynamic": "local"}),
        f'{AT_GROUP}.input_activations.dynamic is "local"; supported is true',
    ),
    "outputs in 8 bits": (
        group_with(output_activations=ACTIVATIONS),
        f"{AT_GROUP}.output_activations is {json.dumps(ACTIVATIONS)}; supported is null",
    ),
    "a KV cache in 8 bits": (
        config_with(kv_cache_scheme={"num_bits": 8}),
        'quantization_config.kv_cache_scheme is {"num_bits": 8}; supported is null',
    ),
    "sparse weights": (
        config_with(sparsity_config={"format": "sparse-24-bitmask"}),
        'quantization_config.sparsity_config is {"format": "sparse-24-bitmask"}; supported is null',
    ),
    "rotations": (
        config_with(transform_config={"config_groups": {"R1": {}}}),
        'quantization_config.transform_config is {"config_groups": {"R1": {}}}; supported is null',
    ),
    "not yet compressed": (
        config_with(quantization_status="calibration"),
        'quantization_config.quantization_status is "calibration"; supported is compressed',
    ),
    "no groups": (
        config_with(config_groups={}),
        "quantization_config.config_groups is {}; supported is an object with at least one group",
    ),
    "a group that is none": (
        config_with(config_groups={"group_0": 1}),
        f"{AT_GROUP} is 1; supported is an object",
    ),
    "targets that are none": (
        group_with(targets="Linear"),
        f'{AT_GROUP}.targets is "Linear"; supported is a list of names',
    ),
    "a pattern that backtracks": (
        config_with(ignore=[f"re:{BACKTRACKS}"]),
        f"quantization_config.targets or ignore is {json.dumps(f're:{BACKTRACKS}')}; supported is "
        "a regular expression that is tried within 1 s",
    ),
    "a pattern that is none": (
        config_with(ignore=["re:("]),
        'quantization_config.targets or ignore is "re:("; supported is a regular expression',
    ),
}


@pytest.mark.parametrize(("config", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_what_is_not_computed_is_refused_with_field_and_value(
    folder: Path, config: dict[str, Any], reason: str
) -> None:
    describe(folder, config)

    assert refusal(folder).startswith(f"{folder / 'config.json'}: {reason}")


@pytest.mark.parametrize("config", [1, [], "w8a8", {}])
def test_a_quantization_config_that_is_none_is_refused(folder: Path, config: Any) -> None:
    describe(folder, config)

    assert "quantization_config.quant_method is null" in refusal(folder)


def test_a_layer_that_is_said_to_be_in_8_bits_and_is_not_is_named(folder: Path) -> None:
    describe(folder, CONFIG)

    assert refusal(folder).endswith("q_proj.weight is of dtype F32, not I8")


def test_projections_of_one_matrix_must_be_of_one_kind(folder: Path) -> None:
    describe(folder, {**CONFIG, "ignore": ["lm_head", f"{FIRST}.k_proj"]})

    assert refusal(folder) == (
        f"{FIRST}.q_proj is W8A8_DYNAMIC, {FIRST}.k_proj is FLOAT, {FIRST}.v_proj is W8A8_DYNAMIC; "
        "these layers read the same input and are computed as one, so they must be of one kind"
    )


def test_scales_that_are_no_numbers_are_named(compressed: Path) -> None:
    name = "model.layers.1.mlp.down_proj"
    no_numbers = torch.full((64, 1), float("nan"))
    rewrite(compressed, lambda tensors: tensors.update({f"{name}.weight_scale": no_numbers}))

    told = f"{compressed}: the scales of {name} are not all numbers other than 0"
    assert refusal(compressed) == told


def test_none_refuses_a_checkpoint_in_8_bits(compressed: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantization is none, but .* in 8 bits; give auto"):
        load(compressed, "none")


def test_w8a8_and_auto_are_the_same_for_a_checkpoint_in_8_bits(compressed: Path) -> None:
    _, asked = load(compressed, "w8a8")
    _, found = load(compressed)

    assert all(
        torch.equal(one.values, other.values) for one, other in zip(asked, found, strict=True)
    )


@pytest.mark.parametrize("quantization", ["auto", "none"])
def test_a_checkpoint_in_float_stays_in_float(folder: Path, quantization: str) -> None:
    decoder, packed = load(folder, quantization)

    assert decoder.quantization is None
    assert packed == []


def test_modelslim_says_the_kind_of_every_layer(folder: Path) -> None:
    kinds = {name: "W8A8" if "self_attn" in name else "W8A8_DYNAMIC" for name in linear_names()}
    kinds["model.layers.1.mlp.down_proj"] = "FLOAT"
    modelslim(folder, kinds)
    tensors = load_file(folder / "quant_model_weight_w8a8.safetensors")

    decoder, packed = load(folder)

    assert [layer.static is not None for layer in packed] == [*[True, True, False, False] * 2][:7]
    assert packed[0].static == StaticInput(0.5, 138)
    assert packed[2].scales.tolist() == [(1 + row % 96) / 64 for row in range(192)]
    assert torch.equal(packed[3].values, tensors["model.layers.0.mlp.down_proj.weight"])
    assert decoder.quantization is not None
    assert "13 of 15 linear layers" in decoder.quantization
    assert decoder.quantization.endswith("of an msModelSlim checkpoint")


@pytest.mark.parametrize("bits", [False, True], ids=["for bfloat16", "for float16"])
def test_a_static_layer_is_computed_by_msmodelslims_formulas(*, bits: bool) -> None:
    """x_q = round(x / 0.5 + 10) = [12, 6]; y = (x_q @ W.T + [-20, 30]) * [0.25, 0.5]."""
    scheme = Scheme(Format.MODELSLIM, lambda _: LinearKind.STATIC)
    kernels = ReferenceKernels()
    projection = Projection(name="l", outputs=2, inputs=2, rows=range(2), columns=range(2))
    layer = allocate_quantized(
        scheme,
        LinearKind.STATIC,
        (projection,),
        padding=0,
        bias=True,
        adds_bias=True,
        device="cpu",
        kernels=kernels,
    )
    deq_scale = torch.tensor([0.25, 0.5])
    tensors = {
        "l.weight": torch.tensor([[1, 2], [3, -4]], dtype=torch.int8),
        "l.input_scale": torch.tensor([0.5]),
        "l.input_offset": torch.tensor([10], dtype=torch.int8),
        "l.quant_bias": torch.tensor([-20, 30], dtype=torch.int32),
        "l.deq_scale": deq_scale.view(torch.int32).to(torch.int64) if bits else deq_scale,
    }
    for part in layer.parts():
        part.take(tensors.pop(part.name))

    y = kernels.linear(torch.tensor([[1.0, -2.0]]), layer.finished())

    assert not tensors
    assert y.tolist() == [[(12 + 12 - 20) * 0.25, (36 - 24 + 30) * 0.5]]


def change_first(folder: Path, name: str, value: Tensor) -> None:
    path = folder / "quant_model_weight_w8a8.safetensors"
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items()}
    tensors[name] = value
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        pytest.param(
            f"{FIRST}.k_proj.input_scale",
            torch.tensor([0.25]),
            f"the tensors {FIRST}.q_proj.input_scale, {FIRST}.k_proj.input_scale, "
            f"{FIRST}.v_proj.input_scale are 0.5, 0.25, 0.5; these layers read the same input",
            id="scales that differ",
        ),
        pytest.param(
            f"{FIRST}.o_proj.input_scale",
            torch.tensor([0.0]),
            f"{FIRST}.o_proj.input_scale is 0.0, not above 0",
            id="no scale",
        ),
        pytest.param(
            f"{FIRST}.o_proj.input_offset",
            torch.tensor([0.5]),
            f"{FIRST}.o_proj.input_offset is 0.5, not a whole number from -128 to 127",
            id="half an offset",
        ),
        pytest.param(
            "model.layers.0.mlp.up_proj.weight_offset",
            torch.ones(96, 1),
            "the tensor model.layers.0.mlp.up_proj.weight_offset has values other than 0",
            id="weights with offsets",
        ),
        pytest.param(
            "model.layers.0.input_layernorm.bias",
            torch.ones(64),
            "the tensor model.layers.0.input_layernorm.bias has values other than 0",
            id="a norm with a bias",
        ),
    ],
)
def test_tensors_of_modelslim_that_are_not_computed_are_named(
    folder: Path, name: str, value: Tensor, reason: str
) -> None:
    modelslim(folder, {n: "W8A8" if "self_attn" in n else "W8A8_DYNAMIC" for n in linear_names()})
    change_first(folder, name, value)

    assert refusal(folder).startswith(f"{folder}: {reason}")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"kv_cache_type": "C8"}, 'kv_cache_type is "C8", which is not computed'),
        ({"fa_quant_type": "FAKQuant"}, 'fa_quant_type is "FAKQuant", which is not computed'),
        ({"is_rot_used": True}, "is_rot_used is true, which is not computed"),
        ({"group_size": 64}, "group_size is 64, which is not computed"),
    ],
)
def test_what_modelslim_quantises_besides_is_refused(
    folder: Path, fields: dict[str, Any], reason: str
) -> None:
    path = modelslim(folder, dict.fromkeys(linear_names(), "W8A8_DYNAMIC"), **fields)

    assert refusal(folder).startswith(f"{path}: {reason}")


@pytest.mark.parametrize("kind", ["W4A8_DYNAMIC", "W8A16", "W8A8_MIX", "W8A8S", None])
def test_other_kinds_of_modelslim_are_refused(folder: Path, kind: Any) -> None:
    path = modelslim(folder, dict.fromkeys(linear_names(), "W8A8_DYNAMIC"))
    document = json.loads(path.read_text())
    document[f"{FIRST}.v_proj.weight"] = kind
    path.write_text(json.dumps(document))

    assert refusal(folder) == (
        f"{path}: the tensor {FIRST}.v_proj.weight is of kind {json.dumps(kind)}; "
        "supported are FLOAT, W8A8_DYNAMIC, W8A8"
    )


def test_a_layer_that_modelslim_does_not_describe_is_named(folder: Path) -> None:
    path = modelslim(folder, dict.fromkeys(linear_names(), "W8A8_DYNAMIC"))
    document = json.loads(path.read_text())
    del document[f"{FIRST}.v_proj.weight"]
    path.write_text(json.dumps(document))

    assert refusal(folder) == (f"{path} does not name the kind of the tensor {FIRST}.v_proj.weight")


def test_norms_that_undo_a_shift_of_outliers_replace_the_old_ones(folder: Path) -> None:
    modelslim(folder, dict.fromkeys(linear_names(), "W8A8_DYNAMIC"))
    norm = "model.layers.0.input_layernorm"
    change_first(folder, f"{norm}.module.weight", torch.full((64,), 7.0))
    change_first(folder, f"{norm}.module.bias", torch.zeros(64))

    decoder, _ = load(folder)

    assert bool((decoder.packed_model.layers[0].attention_norm == 7).all())
    assert not bool((decoder.packed_model.layers[1].attention_norm == 7).any())


def test_files_of_weights_without_an_index_are_refused(folder: Path) -> None:
    modelslim(folder, dict.fromkeys(linear_names(), "W8A8_DYNAMIC"))
    (folder / "quant_model_weight_w8a8-2.safetensors").write_bytes(b"")

    assert refusal(folder).startswith(
        f"{folder} holds quant_model_weight_w8a8-2.safetensors, quant_model_weight_w8a8.safetensors"
    )


def test_two_descriptions_are_refused(compressed: Path) -> None:
    (compressed / "quant_model_description_w8a8.json").write_text("{}")

    assert "can be of one of the two formats only" in refusal(compressed)
