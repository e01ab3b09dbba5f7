"""An output head that config.json ties to the embedding, where the files say otherwise."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tandem_engine.api.errors import CheckpointError
from tandem_engine.convert import quantize_checkpoint
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.model.config import read_decoder_config
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.plan import ParallelShape
from tests.unit.engine.test_checkpoint import embedding, plain

RUNTIME = CpuRuntime(memory_bytes=1 << 30, kernels="reference")
EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
MakeCheckpoint = Callable[..., Path]
MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> MakeFolder:
    """`make_folder(architecture, change, tie=...)`: `change` takes the tensors of the file."""

    def make(
        architecture: str, change: Callable[[dict[str, Tensor]], None], *, tie: bool | None
    ) -> Path:
        folder = shutil.copytree(make_checkpoint(architecture), tmp_path / "model")
        tensors = {
            name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()
        }
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        document = json.loads((folder / "config.json").read_text())
        document.pop("tie_word_embeddings", None)
        if tie is not None:
            document["tie_word_embeddings"] = tie
        (folder / "config.json").write_text(json.dumps(document))
        return folder

    return make


def keep(tensors: dict[str, Tensor]) -> None:
    """Both are there, and differ."""


def repeat_embedding(tensors: dict[str, Tensor]) -> None:
    tensors[HEAD] = tensors[EMBEDDING].clone()


def differ_in_the_last_value(tensors: dict[str, Tensor]) -> None:
    repeat_embedding(tensors)
    tensors[HEAD][-1, -1] += 1


def drop_head(tensors: dict[str, Tensor]) -> None:
    del tensors[HEAD]


def drop_embedding(tensors: dict[str, Tensor]) -> None:
    del tensors[EMBEDDING]


@pytest.mark.parametrize(
    "architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
)
@pytest.mark.parametrize(
    ("tie", "change"),
    [
        (True, keep),
        (True, repeat_embedding),
        (True, differ_in_the_last_value),
        (True, drop_head),
        (True, drop_embedding),
        (False, keep),
        (False, repeat_embedding),
        (None, keep),
    ],
)
def test_embedding_and_head_are_those_of_transformers(
    make_folder: MakeFolder, architecture: str, tie: bool | None, change: Any
) -> None:
    folder = make_folder(architecture, change, tie=tie)

    decoder = load_decoder(folder, runtime=RUNTIME)

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    inputs, outputs = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert torch.equal(embedding(decoder), inputs)
    assert torch.equal(head(decoder), outputs)
    is_shared = decoder.packed_model.head is decoder.packed_model.embedding
    assert is_shared == (outputs is inputs)


@pytest.mark.parametrize("tie", [False, None])
def test_a_missing_head_is_refused_with_the_way_out(
    make_folder: MakeFolder, tie: bool | None
) -> None:
    folder = make_folder("LlamaForCausalLM", drop_head, tie=tie)

    with pytest.raises(CheckpointError) as caught:
        load_decoder(folder, runtime=RUNTIME)

    assert str(caught.value) == (
        f"{folder / 'model.safetensors'} lacks the tensor lm_head.weight; where the output head is "
        f"the embedding, {folder / 'config.json'} has to say tie_word_embeddings: true"
    )


@pytest.mark.parametrize(
    ("change", "says"), [(keep, True), (repeat_embedding, False), (drop_embedding, False)]
)
def test_a_head_of_its_own_is_said(make_folder: MakeFolder, change: Any, *, says: bool) -> None:
    folder = make_folder("Qwen3ForCausalLM", change, tie=True)

    disagreement = read_decoder_config(folder).disagreement

    expected = (
        f"{folder} has an output head of its own, lm_head.weight, which is used though config.json "
        "says tie_word_embeddings: true; say false there to silence this."
    )
    assert disagreement == (expected if says else "")


def test_a_folder_without_weights_is_as_config_json_says(make_folder: MakeFolder) -> None:
    folder = make_folder("Qwen3ForCausalLM", keep, tie=True)
    (folder / "model.safetensors").unlink()

    assert read_decoder_config(folder).tie_word_embeddings


@pytest.mark.parametrize("change", [keep, drop_embedding, drop_head])
def test_stages_share_what_one_rank_loads(make_folder: MakeFolder, change: Any) -> None:
    folder = make_folder("Qwen3ForCausalLM", change, tie=True)
    whole = load_decoder(folder, runtime=RUNTIME)

    first, last = (
        load_decoder(folder, runtime=RUNTIME, shape=ParallelShape(pp=2), rank=rank)
        for rank in range(2)
    )

    assert torch.equal(embedding(first), embedding(whole))
    assert torch.equal(head(last), head(whole))


@pytest.mark.parametrize("head_too", [False, True])
@pytest.mark.parametrize("change", [keep, drop_embedding, repeat_embedding])
def test_what_is_quantised_has_the_same_embedding_and_head(
    make_folder: MakeFolder, tmp_path: Path, change: Any, *, head_too: bool
) -> None:
    folder = make_folder("Qwen3ForCausalLM", change, tie=True)
    source = load_decoder(folder, runtime=RUNTIME)

    quantize_checkpoint(folder, tmp_path / "out", head=head_too)

    made = load_decoder(tmp_path / "out", runtime=RUNTIME)
    assert torch.equal(embedding(made), embedding(source))
    assert not made.config.disagreement
    if not head_too:
        assert torch.equal(head(made), head(source))


def head(decoder: Decoder) -> Tensor:
    return plain(decoder.packed_model.head).weight
