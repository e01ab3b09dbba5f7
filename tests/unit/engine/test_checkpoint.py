"""Weights on disk: every way to store them loads alike, every damage is named."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem_engine.api.errors import CheckpointError
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.device.reference.kernels import PlainLinear
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.weights.checkpoint import Checkpoint, check_readable

RUNTIME = CpuRuntime(memory_bytes=1 << 30, kernels="reference")  # keeps weights as they are
MakeCheckpoint = Callable[..., Path]


def parameters(decoder: Decoder) -> list[Tensor]:
    """All of a decoder's parameters, in one order."""
    packed_model = decoder.packed_model
    found = [embedding(decoder), norm(decoder), plain(packed_model.head).weight]
    for layer in packed_model.layers:
        found += [layer.attention_norm, layer.mlp_norm]
        for linear in map(plain, (layer.qkv, layer.output, layer.gate_up, layer.down)):
            found += [linear.weight] + ([] if linear.bias is None else [linear.bias])
    return found


def plain(packed: PackedLinear | Tensor | None) -> PlainLinear:
    assert isinstance(packed, PlainLinear)
    return packed


def embedding(decoder: Decoder) -> Tensor:
    table = decoder.packed_model.embedding
    return table if isinstance(table, Tensor) else plain(table).weight


def norm(decoder: Decoder) -> Tensor:
    weight = decoder.packed_model.norm
    assert weight is not None
    return weight


@pytest.fixture
def folder(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> Path:
    """A checkpoint that a test may damage."""
    return shutil.copytree(make_checkpoint("Qwen2ForCausalLM"), tmp_path / "model")


@pytest.fixture
def sharded(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> Path:
    """The same in several files, to be damaged too."""
    source = make_checkpoint("Qwen2ForCausalLM", max_shard_size="100KB")
    return shutil.copytree(source, tmp_path / "sharded")


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Save the tensors of the single file again after `change`."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder, runtime=RUNTIME)
    return str(caught.value)


def test_shards_load_like_a_single_file(folder: Path, sharded: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert len(list(folder.glob("*.safetensors"))) == 1

    one, many = (load_decoder(where, runtime=RUNTIME) for where in (folder, sharded))

    torch.testing.assert_close(parameters(many), parameters(one), atol=0, rtol=0)


def test_projections_that_read_the_same_input_are_one_matrix(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")

    layer = load_decoder(folder, runtime=RUNTIME).packed_model.layers[1]
    qkv, gate_up = plain(layer.qkv), plain(layer.gate_up)

    def stacked(kind: str, *names: str) -> Tensor:
        return torch.cat([tensors[f"model.layers.1.{name}_proj.{kind}"] for name in names])

    names = ("self_attn.q", "self_attn.k", "self_attn.v")
    assert torch.equal(qkv.weight, stacked("weight", *names))
    assert qkv.bias is not None
    assert torch.equal(qkv.bias, stacked("bias", *names))
    assert torch.equal(gate_up.weight, stacked("weight", "mlp.gate", "mlp.up"))


def test_a_tied_head_is_the_embedding_itself(make_checkpoint: MakeCheckpoint) -> None:
    tied = load_decoder(
        make_checkpoint("Qwen3ForCausalLM", tie_word_embeddings=True), runtime=RUNTIME
    )
    untied = load_decoder(make_checkpoint("Qwen3ForCausalLM"), runtime=RUNTIME)

    assert tied.packed_model.head is tied.packed_model.embedding
    assert not torch.equal(plain(untied.packed_model.head).weight, embedding(untied))


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("asked", ["auto", "float32", "bfloat16", "float16"])
def test_any_dtype_is_converted_to_any_other(
    make_checkpoint: MakeCheckpoint, stored: str, asked: Any
) -> None:
    source = make_checkpoint("LlamaForCausalLM", dtype=stored)

    decoder = load_decoder(source, dtype=asked, runtime=RUNTIME)

    expected = getattr(torch, stored if asked == "auto" else asked)
    stored_table = load_file(source / "model.safetensors")["model.embed_tokens.weight"]
    assert {tensor.dtype for tensor in parameters(decoder)} == {expected}
    assert torch.equal(embedding(decoder), stored_table.to(expected))


def test_auto_takes_the_dtype_of_the_tensors_when_config_json_is_silent(folder: Path) -> None:
    document = json.loads((folder / "config.json").read_text())
    del document["dtype"]
    (folder / "config.json").write_text(json.dumps(document))

    assert load_decoder(folder, runtime=RUNTIME).dtype == torch.float32


def test_progress_counts_up_to_all_bytes(folder: Path) -> None:
    calls: list[tuple[int, int]] = []

    load_decoder(folder, runtime=RUNTIME, progress=lambda done, total: calls.append((done, total)))

    size = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert calls[0] == (0, size)
    assert calls[-1] == (size, size)
    assert calls == sorted(calls)


def test_the_decoder_outlives_its_files(folder: Path) -> None:
    expected = load_file(folder / "model.safetensors")["model.norm.weight"].clone()
    decoder = load_decoder(folder, runtime=RUNTIME)

    (folder / "model.safetensors").write_bytes(b"")

    assert torch.equal(norm(decoder), expected)


def test_tensors_that_do_not_start_at_a_multiple_of_their_size_are_read(tmp_path: Path) -> None:
    values = torch.arange(6, dtype=torch.float32)
    fields = {"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [1, 25]}}
    header = json.dumps(fields).encode()
    (tmp_path / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + b"." + values.numpy().tobytes()
    )
    destination = torch.empty(2, 3)

    with Checkpoint.open(tmp_path) as checkpoint:
        checkpoint.copy("x", destination)

    assert torch.equal(destination, values.view(2, 3))


def test_a_missing_tensor_is_named_with_its_file(folder: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"

    def leave_out(tensors: dict[str, Tensor]) -> None:
        del tensors[name]

    rewrite(folder, leave_out)

    path = folder / "model.safetensors"
    assert refusal(folder) == f"{path} lacks the tensor {name}"


def test_a_tensor_that_no_shard_holds_is_named(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    first = min(document["weight_map"].values())
    document["weight_map"]["model.made.up"] = first
    index.write_text(json.dumps(document))

    assert refusal(sharded) == f"{sharded / first} lacks the tensor model.made.up, of {index.name}"


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()

    expected = f"{shard} does not exist, but model.safetensors.index.json names it"
    assert refusal(sharded) == expected


def test_a_file_that_is_cut_off_is_named_with_the_first_tensor_beyond(folder: Path) -> None:
    path = folder / "model.safetensors"
    with Checkpoint.open(folder) as checkpoint:
        entries = sorted(map(checkpoint.entry, checkpoint.names()), key=lambda entry: entry.end)
    path.write_bytes(path.read_bytes()[: entries[3].end - 1])

    assert refusal(folder) == (
        f"{path} is cut off: the tensor {entries[3].name} ends at byte {entries[3].end}, "
        f"the file at {entries[3].end - 1}"
    )


def test_a_wrong_shape_is_named(folder: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(32, 60)}))

    assert refusal(folder) == (
        f"{folder / 'model.safetensors'}: the tensor {name} has the shape [32, 60], "
        "but config.json asks for [32, 64]"
    )


def test_an_unknown_dtype_is_named(folder: Path) -> None:
    rewrite(
        folder,
        lambda tensors: tensors.update(
            {"model.norm.weight": torch.zeros(64, dtype=torch.float8_e4m3fn)}
        ),
    )

    assert refusal(folder) == (
        f"{folder / 'model.safetensors'}: the tensor model.norm.weight is of dtype F8_E4M3, "
        "not one of BF16, F16, F32"
    )


def test_a_tensor_that_the_model_lacks_is_refused(folder: Path) -> None:
    name = "model.layers.0.self_attn.q_norm.weight"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(16)}))

    assert refusal(folder).startswith(f"{folder / 'model.safetensors'} holds the tensor {name}, ")


def test_tensors_known_to_be_harmless_are_ignored(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    source = make_checkpoint("Qwen3ForCausalLM", tie_word_embeddings=True)
    folder = shutil.copytree(source, tmp_path / "model")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(8)}))

    decoder = load_decoder(folder, runtime=RUNTIME)

    assert plain(decoder.packed_model.head).weight.any()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "cut off within its header (0 bytes long)", id="empty"),
        pytest.param(b"\x80" * 100, "cut off within its header (100 bytes long)", id="garbage"),
        pytest.param(
            (5).to_bytes(8, "little") + b"PK\x03\x04zip", "does not hold the header", id="no JSON"
        ),
        pytest.param(
            (2).to_bytes(8, "little") + b"[]", "does not hold the header", id="no JSON object"
        ),
        pytest.param(
            (15).to_bytes(8, "little") + b'{"a": {"b": 1}}',
            "the header does not say what the tensor a is",
            id="no fields",
        ),
        pytest.param(
            (69).to_bytes(8, "little")
            + b'{"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}}    '
            + bytes(16),
            "the tensor a takes 12 bytes, which is not the size of [2, 2] in F32",
            id="contradiction",
        ),
        pytest.param(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "is a Git LFS pointer, not the file; run 'git lfs pull'",
            id="Git LFS",
        ),
        pytest.param(
            (100_000).to_bytes(8, "little") + b"[" * 100_000,
            "does not hold the header of a safetensors file: maximum recursion depth",
            id="nested without end",
        ),
        pytest.param(
            (68).to_bytes(8, "little")
            + b'{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}    '
            + bytes(4),
            "the header does not say what the tensor a is",
            id="a size that is no number",
        ),
    ],
)
def test_a_file_that_is_not_safetensors_is_named(folder: Path, content: bytes, reason: str) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(content)

    message = refusal(folder)
    assert message.startswith(str(path))
    assert reason in message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("{", "does not hold the index: ", id="garbled"),
        pytest.param('{"metadata": {}}', "has no weight_map from tensors to files", id="no map"),
        pytest.param(
            '{"weight_map": {"x": "../x"}}', "names ../x, which is not a file beside it", id="path"
        ),
        pytest.param(
            '{"weight_map": {"x": ".."}}', "names .., which is not a file beside it", id="parent"
        ),
        pytest.param(
            '{"weight_map": {"x": ""}}', "names , which is not a file beside it", id="no name"
        ),
        pytest.param("[" * 100_000, "does not hold the index: maximum recursion", id="deep"),
    ],
)
def test_a_bad_index_is_named(sharded: Path, content: str, reason: str) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(content)

    assert refusal(sharded).startswith(f"{index} {reason}")


def test_a_shard_of_an_impossible_name_does_not_exist(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    name = "x" * 5000
    index.write_text(json.dumps({"weight_map": {"x": name}}))

    message = refusal(sharded)
    assert message.startswith(f"{sharded}/xxx")
    assert message.endswith(f"does not exist, but {index.name} names it")
    assert len(message) < 1100


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model.safetensors.index.json", "config.json"]
)
def test_a_folder_instead_of_a_file_is_named(sharded: Path, name: str) -> None:
    path = sharded / name
    path.unlink(missing_ok=True)
    path.mkdir()

    assert refusal(sharded) == f"{path} cannot be read: Is a directory"


def test_a_header_without_end_is_not_read(folder: Path) -> None:
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write((2**40).to_bytes(8, "little"))
        file.truncate(2**41)  # a file with a hole: it takes up nothing

    assert refusal(folder) == (
        f"{path} says that its header is {2**40} bytes long, which must be at most 100000000; "
        "it is not a safetensors file"
    )


def test_a_file_that_is_cut_off_after_it_was_opened_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    with Checkpoint.open(folder) as checkpoint:
        last = max(checkpoint.names(), key=lambda name: checkpoint.entry(name).end)
        os.truncate(path, path.stat().st_size - 1)

        with pytest.raises(CheckpointError, match=f"{path} was cut off while it was read"):
            checkpoint.hand_over(last, lambda _: None)


@pytest.mark.parametrize(
    ("key", "size"), [("vocab_size", 2**24), ("intermediate_size", 2**24), ("hidden_size", 2**24)]
)
def test_a_size_that_the_tensors_do_not_have_takes_no_memory(
    folder: Path, key: str, size: int
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: size}))

    held = RUNTIME.peak_memory(lambda: None)
    peak = RUNTIME.peak_memory(lambda: refusal(folder))

    assert str(size) in refusal(folder)
    assert peak - held < 2**26


def test_layers_that_are_not_there_are_not_allocated(folder: Path) -> None:
    path = folder / "config.json"
    document = json.loads(path.read_text()) | {"num_hidden_layers": 2**24}
    document.pop("layer_types", None)
    path.write_text(json.dumps(document))

    expected = f"lacks the tensor model.layers.{2**24 - 1}.input_layernorm.weight"
    assert refusal(folder) == f"{folder / 'model.safetensors'} {expected}"


def test_what_files_say_is_quoted_in_one_line(folder: Path) -> None:
    name = "a\nb\ud800\x1b[31m" + "x" * 10_000

    def add(tensors: dict[str, Tensor]) -> None:
        tensors["stranger"] = torch.zeros(1)

    rewrite(folder, add)
    path = folder / "model.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header[name] = header.pop("stranger")
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    message = refusal(folder)

    assert message.startswith(rf"{path} holds the tensor a\nb\ud800\x1b[31mxxx")
    assert message.endswith("the weights and config.json do not belong together")
    assert message.isprintable()
    assert len(message) < 1100


def test_a_folder_without_weights_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()

    assert refusal(folder) == (
        f"{folder} holds neither model.safetensors nor model.safetensors.index.json; "
        "weights are read from safetensors files only"
    )


def test_a_file_that_is_closed_to_the_replica_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def may(path: Path, _: int) -> bool:
        return path.name != "model.safetensors"

    check_readable(folder)
    # Root may read everything, and tests may run as root.
    monkeypatch.setattr(os, "access", may)

    with pytest.raises(CheckpointError, match=r"model\.safetensors may not be read by user \d+"):
        check_readable(folder)
