"""A rank reads its slices of a checkpoint, in float and in 8 bits, and no others."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.api.errors import ConfigError
from tandem_engine.convert import quantize_checkpoint
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.reference.kernels import PlainLinear
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.weights.checkpoint import Checkpoint
from tests.unit.engine.native import native_kernels
from tests.unit.engine.parallel.ranks import Ranks
from tests.unit.engine.parallel.test_stages import assert_alike, expected, run
from tests.unit.engine.quantized_checkpoints import (
    CONFIG,
    LINEARS,
    describe,
    linear_names,
    rewrite,
    to_static,
)

Make = Callable[..., Path]
RUNTIME = CpuRuntime(memory_bytes=1 << 30, kernels="reference")  # keeps weights as they are
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3}
"""Large enough for what each rank reads as a whole, the norms, not to count."""
_OF_8_BITS = 0.08
"""Relative error that other scales of activations explain; a wrong scale or row gives about 1."""


def rank_of(folder: Path, shape: ParallelShape, rank: int, **settings: Any) -> Decoder:
    return load_decoder(folder, runtime=RUNTIME, shape=shape, rank=rank, **settings)


def bytes_read(folder: Path, shape: ParallelShape, rank: int) -> int:
    """Bytes of the file that a rank takes."""
    calls: list[tuple[int, int]] = []
    load_decoder(
        folder,
        runtime=RUNTIME,
        shape=shape,
        rank=rank,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls[-1][0] == calls[-1][1]
    return calls[-1][1]


def size_of(folder: Path) -> int:
    with Checkpoint.open(folder) as checkpoint:
        return sum(checkpoint.entry(name).num_bytes for name in checkpoint.names())


def weight(linear: object) -> Tensor:
    assert isinstance(linear, PlainLinear)
    return linear.weight


def bias(linear: object) -> Tensor | None:
    assert isinstance(linear, PlainLinear)
    return linear.bias


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("is_tied", [False, True], ids=["untied", "tied"])
def test_a_rank_reads_its_share_of_the_bytes(
    make_checkpoint: Make, tp: int, *, is_tied: bool
) -> None:
    folder = make_checkpoint(
        "Qwen2ForCausalLM", num_key_value_heads=4, tie_word_embeddings=is_tied, **WIDE
    )

    read = [bytes_read(folder, ParallelShape(tp=tp), rank) for rank in range(tp)]

    share = size_of(folder) / tp
    assert all(share <= one < 1.01 * share for one in read)


def test_a_stage_reads_its_layers_alone(make_checkpoint: Make) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", **WIDE)

    read = [bytes_read(folder, ParallelShape(pp=3), rank) for rank in range(3)]

    assert sum(read) == size_of(folder)
    assert read[1] < read[0] < 2 * read[1]


@pytest.mark.parametrize("output_format", ["compressed-tensors", "msmodelslim"])
def test_a_rank_reads_its_share_of_a_checkpoint_in_8_bits(
    make_checkpoint: Make, tmp_path: Path, output_format: Any
) -> None:
    folder = tmp_path / "int8"
    source = make_checkpoint("Qwen2ForCausalLM", num_key_value_heads=4, **WIDE)
    quantize_checkpoint(source, folder, output_format=output_format)

    read = [bytes_read(folder, ParallelShape(tp=2), rank) for rank in range(2)]

    # The scales of row-parallel layers are of whole rows, and all ranks need them.
    assert all(size_of(folder) / 2 <= one < 0.52 * size_of(folder) for one in read)


def test_slices_of_all_ranks_are_the_weights_of_one(make_checkpoint: Make) -> None:
    folder = make_checkpoint("LlamaForCausalLM", attention_bias=True, mlp_bias=True)
    (whole,) = (rank_of(folder, ParallelShape(), 0).packed_model.layers[1],)
    ranks = [rank_of(folder, ParallelShape(tp=4), rank).packed_model.layers[1] for rank in range(4)]

    q, k, v = torch.split(weight(whole.qkv), [64, 32, 32])
    own = [torch.split(weight(one.qkv), [16, 16, 16]) for one in ranks]
    assert torch.equal(torch.cat([each[0] for each in own]), q)
    assert torch.equal(torch.cat([own[0][1], own[2][1]]), k)
    assert torch.equal(own[0][1], own[1][1])  # a KV head for two ranks
    assert torch.equal(torch.cat([own[1][2], own[3][2]]), v)
    gate, up = torch.split(weight(whole.gate_up), 96)
    halves = [torch.split(weight(one.gate_up), 24) for one in ranks]
    assert torch.equal(torch.cat([each[0] for each in halves]), gate)
    assert torch.equal(torch.cat([each[1] for each in halves]), up)
    for name in ("output", "down"):
        columns = [weight(getattr(one, name)) for one in ranks]
        assert torch.equal(torch.cat(columns, dim=1), weight(getattr(whole, name)))
        # One rank alone adds the bias to the sum.
        assert [bias(getattr(one, name)) is None for one in ranks] == [False, True, True, True]


def test_the_vocabulary_is_padded_to_equal_widths(make_checkpoint: Make) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", vocab_size=271, tie_word_embeddings=True)
    models = [rank_of(folder, ParallelShape(tp=4), rank).packed_model for rank in range(4)]

    heads = [weight(model.head) for model in models]

    whole = rank_of(folder, ParallelShape(), 0).packed_model
    assert [len(head) for head in heads] == [68] * 4
    assert [model.vocab_size for model in models] == [68] * 4
    assert torch.equal(torch.cat(heads)[:271], weight(whole.head))
    assert not heads[3][-1].any()


def test_the_first_stage_embeds_and_the_last_one_has_norm_and_head(make_checkpoint: Make) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", num_hidden_layers=3, tie_word_embeddings=True)

    first, inner, last = (rank_of(folder, ParallelShape(pp=3), rank) for rank in range(3))

    assert isinstance(first.packed_model.embedding, Tensor)
    assert last.packed_model.embedding is None
    assert first.packed_model.norm is None
    assert first.packed_model.head is None
    for part in ("embedding", "norm", "head"):
        assert getattr(inner.packed_model, part) is None
    assert torch.equal(weight(last.packed_model.head), first.packed_model.embedding)
    assert [len(one.packed_model.layers) for one in (first, inner, last)] == [1, 1, 1]


def test_a_rank_allocates_the_cache_of_its_own_heads_and_layers(make_checkpoint: Make) -> None:
    folder = make_checkpoint("Qwen2ForCausalLM", num_hidden_layers=3)
    whole = rank_of(folder, ParallelShape(), 0).cache_layout(16)

    layouts = [
        rank_of(folder, ParallelShape(tp=2, pp=2), rank).cache_layout(16) for rank in range(4)
    ]

    assert sum(layout.block_bytes for layout in layouts) == whole.block_bytes
    assert [layout.num_layers for layout in layouts] == [2, 2, 1, 1]
    assert [layout.num_kv_heads for layout in layouts] == [1] * 4


def test_a_model_that_cannot_be_cut_is_refused(make_checkpoint: Make) -> None:
    with pytest.raises(ConfigError, match=r"tp is 3, but .* can be cut into tp 1, 2, 4"):
        rank_of(make_checkpoint("Qwen2ForCausalLM"), ParallelShape(tp=3), 0)


def test_a_tensor_that_the_model_does_not_have_is_refused_on_every_rank(
    make_checkpoint: Make, tmp_path: Path
) -> None:
    folder = tmp_path / "odd"
    shutil.copytree(make_checkpoint("Qwen3ForCausalLM"), folder)
    name = "model.layers.1.self_attn.q_proj.bias"
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(64)}))

    for rank in range(2):
        with pytest.raises(Exception, match=f"holds the tensor {name}"):
            rank_of(folder, ParallelShape(pp=2), rank)


def compressed(source: Path, folder: Path) -> dict[str, Any]:
    quantize_checkpoint(source, folder)
    return {}


def compressed_with_head(source: Path, folder: Path) -> dict[str, Any]:
    quantize_checkpoint(source, folder, head=True)
    return {}


def modelslim_dynamic(source: Path, folder: Path) -> dict[str, Any]:
    quantize_checkpoint(source, folder, output_format="msmodelslim")
    return {}


def modelslim_static(source: Path, folder: Path) -> dict[str, Any]:
    shutil.copytree(source, folder)
    to_static(folder, dict.fromkeys(linear_names(), "W8A8"), input_scale=0.03, offset=-7)
    return {}


def modelslim_mixed(source: Path, folder: Path) -> dict[str, Any]:
    shutil.copytree(source, folder)
    kinds = {**dict.fromkeys(LINEARS, "W8A8"), "mlp.down_proj": "W8A8_DYNAMIC"}
    by_name = {name: kinds[name.split(".", 3)[3]] for name in linear_names()}
    to_static(folder, by_name, input_scale=0.03, offset=-7)
    return {}


def at_load(source: Path, folder: Path) -> dict[str, Any]:
    shutil.copytree(source, folder)
    return {"quantization": "w8a8"}


@pytest.mark.parametrize(
    "make",
    [
        compressed,
        compressed_with_head,
        modelslim_dynamic,
        modelslim_static,
        modelslim_mixed,
        at_load,
    ],
)
@pytest.mark.parametrize("kernels", [None, "reference"], ids=["native", "reference"])
@pytest.mark.parametrize(
    "shape",
    [ParallelShape(tp=4, sp=True), ParallelShape(tp=2, pp=2)],
    ids=["tp4-sp", "tp2-pp2"],
)
def test_ranks_in_8_bits_give_the_logits_of_one(
    make_checkpoint: Make,
    tmp_path: Path,
    make: Callable[[Path, Path], dict[str, Any]],
    kernels: str | None,
    shape: ParallelShape,
) -> None:
    """As near as scales of a rank's own inputs allow."""
    if kernels is None:
        native_kernels()
    folder = tmp_path / "int8"
    settings = make(make_checkpoint("LlamaForCausalLM", vocab_size=271), folder)

    found = run(Ranks(folder, shape, kernels=kernels, **settings))

    assert_alike(found, expected(folder, kernels=kernels, **settings), _OF_8_BITS)


def test_a_static_layer_with_a_bias_adds_it_once(make_checkpoint: Make, tmp_path: Path) -> None:
    folder = tmp_path / "static"
    shutil.copytree(make_checkpoint("LlamaForCausalLM", vocab_size=271), folder)
    to_static(folder, dict.fromkeys(linear_names(), "W8A8"), input_scale=0.03, offset=-7)

    def shift(tensors: dict[str, Tensor]) -> None:
        for name in linear_names():
            tensors[f"{name}.quant_bias"] += 900

    rewrite(folder, shift, "quant_model_weight_w8a8.safetensors")

    found = run(Ranks(folder, ParallelShape(tp=4), kernels="reference"))

    assert_alike(found, expected(folder, kernels="reference"), 1e-4)


def test_scales_of_a_checkpoint_follow_their_rows(make_checkpoint: Make, tmp_path: Path) -> None:
    """A scale of its own for each row tells rows apart that were taken for others."""
    folder = tmp_path / "scales"
    shutil.copytree(make_checkpoint("Qwen2ForCausalLM"), folder)

    def to_int8(tensors: dict[str, Tensor]) -> None:
        for name in linear_names():
            values = tensors[f"{name}.weight"]
            scales = values.abs().amax(1, keepdim=True) / 127
            tensors[f"{name}.weight"] = (values / scales).round().to(torch.int8)
            tensors[f"{name}.weight_scale"] = scales * torch.linspace(0.1, 3, len(scales))[:, None]

    rewrite(folder, to_int8)
    describe(folder, CONFIG)

    found = run(Ranks(folder, ParallelShape(tp=2), kernels="reference"))

    assert_alike(found, expected(folder, kernels="reference"), _OF_8_BITS)
