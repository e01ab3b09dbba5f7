"""The checkpoints that are computed in one native call a step, and the warning for others."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import load_library, runnable_variants
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.model.decoder import Decoder, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tests.unit.engine.native import native_kernels
from tests.unit.engine.quantized_checkpoints import LINEARS, linear_names, to_static

Make = Callable[..., Path]
BLOCK_SIZE = 8
PROMPT = [17, 200, 5, 5, 91, 33]
NUM_NEW = 12
KINDS = {
    "all static": dict.fromkeys(LINEARS, "W8A8"),
    "static, dynamic and float": {
        **dict.fromkeys(LINEARS, "W8A8"),
        "self_attn.o_proj": "W8A8_DYNAMIC",
        "mlp.down_proj": "FLOAT",
    },
}


@pytest.fixture
def _native() -> None:
    native_kernels()


def loaded(folder: Path, kernels: str | None = None, **settings: Any) -> tuple[CpuRuntime, Decoder]:
    runtime = CpuRuntime(memory_bytes=1 << 30, kernels=kernels)
    return runtime, load_decoder(folder, runtime=runtime, **settings)


def is_native(runtime: CpuRuntime) -> bool:
    assert isinstance(runtime.kernels, NativeKernels)
    return runtime.kernels.is_native


@torch.inference_mode()
def continued(decoder: Decoder, follow: list[int] | None = None) -> tuple[list[int], Tensor]:
    """Greedy tokens, or those of `follow`, and the logits before each."""
    cache = allocate_kv_cache(decoder.cache_layout(BLOCK_SIZE), num_blocks=4, device="cpu")
    tokens, logits = list(PROMPT), []
    for number in range(NUM_NEW):
        new = tokens if number == 0 else tokens[-1:]
        metadata = build_attention_metadata(
            query_lens=[len(new)],
            context_lens=[len(tokens)],
            block_tables=[list(range(-(-len(tokens) // BLOCK_SIZE)))],
            block_size=BLOCK_SIZE,
        )
        last = torch.tensor([len(new) - 1])
        logits.append(decoder.forward(torch.tensor(new), cache, metadata, logits_rows=last)[0])
        tokens.append(follow[number] if follow else int(logits[-1].argmax()))
    return tokens[len(PROMPT) :], torch.stack(logits)


def assert_alike(native: Decoder, reference: Decoder, most: float) -> None:
    tokens, expected = continued(reference)

    own, _ = continued(native)
    _, got = continued(native, tokens)

    assert float((got - expected).norm() / expected.norm()) < most
    assert own == tokens


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM"])
def test_a_float16_checkpoint_gives_torchs_tokens_in_one_call(
    make_checkpoint: Make, architecture: str
) -> None:
    folder = make_checkpoint(architecture, dtype="float16")

    runtime, native = loaded(folder)
    _, reference = loaded(folder, "reference", dtype="float32")

    assert is_native(runtime)
    assert native.dtype == torch.float16
    assert_alike(native, reference, 2e-3)


@pytest.mark.parametrize("kinds", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("variant", runnable_variants())
def test_static_activations_give_torchs_tokens_in_one_call(
    make_checkpoint: Make, tmp_path: Path, variant: str, dtype: str, kinds: dict[str, str]
) -> None:
    folder = tmp_path / "static"
    shutil.copytree(make_checkpoint("LlamaForCausalLM", dtype=dtype), folder)
    by_name = {name: kinds[name.split(".", 3)[3]] for name in linear_names()}
    to_static(folder, by_name, input_scale=0.03, offset=-7)

    native_kernels(variant)
    runtime, native = loaded(folder, variant)
    _, reference = loaded(folder, "reference", dtype="float32")

    assert is_native(runtime)
    # A digit decides which integer an activation becomes.
    assert_alike(native, reference, 0.03)


REASONS = {
    "odd hidden size": ({"hidden_size": 66, "num_attention_heads": 6}, "w8a8", "hidden_size is 66"),
    "odd feed-forward": ({"intermediate_size": 97}, "auto", "intermediate_size is 97"),
}


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize(("shape", "quantization", "said"), REASONS.values(), ids=list(REASONS))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_width_that_the_kernels_cannot_multiply_is_warned_of_once(
    make_checkpoint: Make,
    caplog: pytest.LogCaptureFixture,
    dtype: str,
    shape: dict[str, int],
    quantization: str,
    said: str,
) -> None:
    folder = make_checkpoint("LlamaForCausalLM", dtype=dtype, **shape)
    caplog.set_level(logging.WARNING)

    runtime, native = loaded(folder, quantization=quantization)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    runtime.begin_steps()
    kept = torch.get_num_threads()
    torch.set_num_threads(threads)
    tokens, _ = continued(native)

    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert said in warnings[0]
    assert not is_native(runtime)
    assert kept == 2  # what torch computes, it does not compute with one thread
    _, reference = loaded(folder, "reference", quantization=quantization, dtype="float32")
    if quantization == "auto":
        assert tokens == continued(reference)[0]


@pytest.mark.usefixtures("_native")
def test_a_dtype_that_the_kernels_do_not_know_is_warned_of_once(
    make_checkpoint: Make, caplog: pytest.LogCaptureFixture
) -> None:
    runtime, decoder = loaded(make_checkpoint("LlamaForCausalLM"))
    object.__setattr__(decoder.packed_model, "dtype", torch.float64)
    caplog.set_level(logging.WARNING)

    # A second decoder is made of the packed model to measure steps.
    assert [runtime.kernels.forward_pass(decoder.packed_model) for _ in range(2)] == [None, None]

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "the dtype is float64, not one of float32, bfloat16, float16" in warning


def test_missing_kernels_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    assert [load_library("auto", tmp_path) for _ in range(2)] == [None, None]

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "There are no native kernels" in warning
    assert "Install g++" in warning


def test_the_choice_of_plain_torch_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    assert [load_library("reference", tmp_path) for _ in range(2)] == [None, None]

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "TANDEM_KERNELS is 'reference'" in warning


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("quantization", ["none", "w8a8"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_is_computed_in_one_call_is_not_warned_of(
    make_checkpoint: Make, caplog: pytest.LogCaptureFixture, dtype: str, quantization: str
) -> None:
    caplog.set_level(logging.WARNING)

    runtime, _ = loaded(make_checkpoint("Qwen3ForCausalLM", dtype=dtype), quantization=quantization)

    assert is_native(runtime)
    assert not caplog.records
