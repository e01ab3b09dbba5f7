"""From float to 8 bits on disk: what is written is what would have been computed at load."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tandem_engine.api.errors import CheckpointError
from tandem_engine.convert import Conversion, quantize_checkpoint
from tandem_engine.text.codec import load_codec
from tests.unit.engine.quantized_checkpoints import linear_names, load, rewrite

MakeCheckpoint = Callable[..., Path]
FORMATS = ["compressed-tensors", "msmodelslim"]
BIASED = {"attention_bias": True, "mlp_bias": True}
TIED = {"tie_word_embeddings": True, "num_hidden_layers": 3}


@pytest.fixture
def folder(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> Path:
    return shutil.copytree(make_checkpoint("Qwen2ForCausalLM", dtype="bfloat16"), tmp_path / "in")


def tensors_of(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name → dtype and shape, as the safetensors library reads them."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118 - not a dictionary
                part = file.get_slice(name)
                found[name] = (part.get_dtype(), tuple(part.get_shape()))
    return found


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("shard_bytes", [1 << 30, 40_000], ids=["one file", "several"])
@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [("Qwen2ForCausalLM", {}), ("Qwen3ForCausalLM", TIED), ("LlamaForCausalLM", BIASED)],
    ids=["Qwen 2", "Qwen 3, tied", "Llama with biases"],
)
def test_what_is_written_equals_what_is_quantised_at_load_to_the_bit(
    make_checkpoint: MakeCheckpoint,
    tmp_path: Path,
    output_format: Any,
    shard_bytes: int,
    architecture: str,
    overrides: dict[str, Any],
) -> None:
    source, target = make_checkpoint(architecture, dtype="bfloat16", **overrides), tmp_path / "out"

    quantize_checkpoint(source, target, output_format=output_format, shard_bytes=shard_bytes)

    assert (len(list(target.glob("*.safetensors"))) > 1) == (shard_bytes < 1 << 30)
    written, from_disk = load(target)
    at_load, from_float = load(source, "w8a8")
    assert len(from_disk) == len(from_float) == 4 * written.config.num_layers
    for one, other in zip(from_disk, from_float, strict=True):
        assert torch.equal(one.values, other.values)
        assert torch.equal(one.scales, other.scales)
        assert same(one.bias, other.bias)
    assert written.dtype == at_load.dtype == torch.bfloat16
    assert same(written.packed_model.norm, at_load.packed_model.norm)


def same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other is None or (
        one is not None and other is not None and torch.equal(one, other)
    )


def test_compressed_tensors_have_the_names_types_and_shapes_of_the_format(
    folder: Path, tmp_path: Path
) -> None:
    before = tensors_of(folder)

    quantize_checkpoint(folder, tmp_path / "out")

    after = tensors_of(tmp_path / "out")
    expected = dict(before)
    for name in linear_names():
        _, shape = before[f"{name}.weight"]
        expected[f"{name}.weight"] = ("I8", shape)
        expected[f"{name}.weight_scale"] = ("F32", (shape[0], 1))
    assert after == expected
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    quantization = config.pop("quantization_config")
    assert config == json.loads((folder / "config.json").read_text())
    assert quantization["quant_method"] == "compressed-tensors"
    assert quantization["format"] == "int-quantized"
    assert quantization["ignore"] == ["lm_head"]
    group = quantization["config_groups"]["group_0"]
    assert group["targets"] == ["Linear"]
    assert (group["weights"]["strategy"], group["weights"]["dynamic"]) == ("channel", False)
    inputs = group["input_activations"]
    assert (inputs["strategy"], inputs["dynamic"]) == ("token", True)


def test_msmodelslim_describes_every_tensor(folder: Path, tmp_path: Path) -> None:
    quantize_checkpoint(folder, tmp_path / "out", output_format="msmodelslim")

    description = json.loads((tmp_path / "out" / "quant_model_description.json").read_text())
    names = tensors_of(tmp_path / "out")
    assert {name for name in description if "." in name} == set(names)
    quantized = {name for name, kind in description.items() if kind == "W8A8_DYNAMIC"}
    kinds = ("weight", "weight_scale", "weight_offset")
    expected = {f"{name}.{kind}" for name in linear_names() for kind in kinds}
    assert quantized == expected | {"model_quant_type"}
    assert names[f"{linear_names()[0]}.weight_offset"] == ("F32", (64, 1))


@pytest.mark.parametrize("output_format", FORMATS)
@pytest.mark.parametrize("tied", [True, False])
def test_the_head_goes_along_when_asked(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, output_format: Any, *, tied: bool
) -> None:
    source = make_checkpoint("Qwen3ForCausalLM", tie_word_embeddings=tied)
    target = tmp_path / "out"

    quantize_checkpoint(source, target, output_format=output_format, head=True)

    decoder, packed = load(target)
    stored = load_file(source / "model.safetensors")
    head = stored["model.embed_tokens.weight" if tied else "lm_head.weight"]
    again = packed[-1].values * packed[-1].scales.unsqueeze(1)
    assert float((again - head).norm() / head.norm()) < 0.01
    assert isinstance(decoder.packed_model.embedding, Tensor)
    assert torch.equal(decoder.packed_model.embedding, stored["model.embed_tokens.weight"])
    assert not decoder.config.tie_word_embeddings


def test_errors_are_those_of_the_layers_and_the_worst_comes_first(
    folder: Path, tmp_path: Path
) -> None:
    coarse = torch.full((64, 64), 0.004)
    coarse[:, 0] = 1.0  # one outlier a row, and the rest is half a step
    name = "model.layers.1.self_attn.o_proj"
    rewrite(folder, lambda tensors: tensors.update({f"{name}.weight": coarse.bfloat16()}))

    conversion = quantize_checkpoint(folder, tmp_path / "out")

    assert conversion.layers[0].name == name
    assert conversion.layers[0].error > 2 * conversion.layers[1].error
    assert [layer.error for layer in conversion.layers] == sorted(
        (layer.error for layer in conversion.layers), reverse=True
    )
    assert len(conversion.layers) == 14
    sizes = (conversion.bytes_before, conversion.bytes_after)
    assert sizes == tuple(
        sum(tensor.nbytes for tensor in load_file(where / "model.safetensors").values())
        for where in (folder, tmp_path / "out")
    )


def test_tokenizer_and_settings_go_along_and_weights_of_other_kinds_do_not(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "LICENSE").write_text("free")
    (folder / "pytorch_model.bin").write_text("weights")
    (folder / "notes.py").write_text("")

    quantize_checkpoint(folder, tmp_path / "out")

    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {path.name for path in folder.iterdir()} - {"pytorch_model.bin", "notes.py"}
    codec = load_codec(tmp_path / "out")
    assert codec.decode(codec.encode("a b")) == "a b"


def test_progress_counts_up_to_all_bytes(folder: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    conversion = quantize_checkpoint(
        folder, tmp_path / "out", progress=lambda done, total: calls.append((done, total))
    )

    assert calls[0] == (0, conversion.bytes_before)
    assert calls[-1] == (conversion.bytes_before,) * 2
    assert calls == sorted(calls)


def refusal(source: Path, target: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        quantize_checkpoint(source, target)
    return str(caught.value)


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine").write_text("precious")

    assert refusal(folder, target) == (
        f"{target} exists already and is not overwritten; name another folder, or remove it first"
    )
    assert [path.name for path in target.iterdir()] == ["mine"]
    assert "exists already" in refusal(folder, folder)


def test_an_empty_folder_is_filled(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    assert isinstance(quantize_checkpoint(folder, tmp_path / "out"), Conversion)
    assert (tmp_path / "out" / "config.json").is_file()


def test_a_checkpoint_in_8_bits_is_not_quantised_again(folder: Path, tmp_path: Path) -> None:
    quantize_checkpoint(folder, tmp_path / "once")

    assert refusal(tmp_path / "once", tmp_path / "twice").startswith(
        f"{tmp_path / 'once'} is a compressed-tensors checkpoint already; name the checkpoint in "
    )


def test_a_damaged_checkpoint_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"

    def leave_out(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    rewrite(folder, leave_out)

    assert refusal(folder, tmp_path / "out").endswith(f"lacks the tensor {name}")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_an_interruption_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(folder, tmp_path / "out", progress=interrupt)

    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_full_disk_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    assert refusal(folder, tmp_path / "out") == (
        f"{tmp_path / 'out'} needs 0 MiB, and {tmp_path} has 0 MiB left; make room, "
        "or name a folder on another disk"
    )


def test_a_source_that_is_no_folder_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none", tmp_path / "out") == (
        f"{tmp_path / 'none'} is not a folder; name the folder of a checkpoint"
    )
