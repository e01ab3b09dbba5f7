"""Sizes that the operators of an NPU do not take are refused, with those that would do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.api.micro_batches import CclConfig
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.convert import quantize_checkpoint
from tandem_engine.device.npu.kernels import NpuKernels
from tandem_engine.device.npu.limits import check_cache
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.model.config import read_decoder_config
from tandem_engine.model.draft import check_draft
from tandem_engine.preview import check_device
from tests.tiny import TINY

LAYOUT = CacheLayout(num_layers=2, num_kv_heads=8, head_dim=128, dtype="bfloat16", block_size=128)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("block_size", [16, 128, 1024])
def test_what_the_operators_take_is_taken(dtype: str, block_size: int) -> None:
    check_cache(replace(LAYOUT, dtype=dtype, block_size=block_size))


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (
            replace(LAYOUT, head_dim=64),
            "the model's heads have 64 values, and attention on device npu takes heads of 128; "
            "choose a model that has these, or device cpu",
        ),
        (
            replace(LAYOUT, dtype="int8"),
            "the KV cache is int8, and on device npu it can be bfloat16 or float16; set dtype or "
            "kvCacheDtype to one of them",
        ),
        (
            replace(LAYOUT, block_size=40),
            "cacheBlockSize is 40, and on device npu it is a multiple of 16 up to 1024; 128 is "
            "what Ascend's servers take",
        ),
    ],
)
def test_a_cache_that_attention_does_not_take_is_refused(
    layout: CacheLayout, sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_cache(layout)

    assert str(refused.value) == sentence


def test_a_layer_that_is_too_wide_for_8_bits_is_refused() -> None:
    kernels = NpuKernels()
    kernels.packing_int8(65535, 64, torch.device("meta"), is_static=False)

    with pytest.raises(ConfigError, match="neither may be above 65535; leave it in its own type"):
        kernels.packing_int8(151936, 64, torch.device("meta"), is_static=False)


def test_more_rows_than_attention_takes_are_refused_without_a_manifest_too() -> None:
    with pytest.raises(ValidationError, match=r"maxBatchSize 4097 is more rows .*, 4096; lower it"):
        EngineConfig(model_path="/m", device="npu", schedule=ScheduleConfig(max_batch_size=4097))

    EngineConfig(model_path="/m", device="npu", schedule=ScheduleConfig(max_batch_size=4096))
    EngineConfig(model_path="/m", schedule=ScheduleConfig(max_batch_size=4097))


def test_a_draft_model_whose_heads_are_others_is_refused_by_its_name() -> None:
    config = EngineConfig(model_path=str(TINY), speculation=SpeculationConfig(draft_path=str(TINY)))
    draft = check_draft(config, read_decoder_config(TINY))
    assert draft is not None

    with pytest.raises(
        ConfigError,
        match=r"^speculation\.draft\.source: of the draft model, the model's heads have 32 values",
    ):
        draft.check_cache(check_cache)


def test_one_operator_for_sums_wants_a_checkpoint_in_float(
    make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    in_float = make_checkpoint("Qwen3ForCausalLM", head_dim=128, dtype="bfloat16")
    in_8_bits = tmp_path / "in 8 bits"
    quantize_checkpoint(in_float, in_8_bits)

    def check(folder: Path, **ccl: bool) -> None:
        tp2 = ParallelismConfig(tp=2)
        check_device(
            EngineConfig(
                model_path=str(folder),
                device="npu",
                parallelism=tp2,
                num_threads=2,
                schedule=ScheduleConfig(cache_block_size=128),
                ccl=CclConfig(**ccl),
            )
        )

    check(in_float, enable_mc2=True)
    check(in_8_bits)
    with pytest.raises(ConfigError, match=r"^device: ccl\.enableMc2 adds up results of layers in "):
        check(in_8_bits, enable_mc2=True)
