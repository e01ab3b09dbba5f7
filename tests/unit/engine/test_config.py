"""Settings: MindIE's names, ranges and defaults; refusals that help."""

import pytest
from pydantic import ValidationError

from tandem_engine.api.config import EngineConfig, ScheduleConfig


def test_defaults_are_mindies() -> None:
    document = ScheduleConfig().document()

    assert document["templateType"] == "Standard"
    assert document["cacheBlockSize"] == 128
    assert document["maxPrefillBatchSize"] == 50
    assert document["maxPrefillTokens"] == 8192
    assert document["maxBatchSize"] == 200
    assert document["maxIterTimes"] == 512
    assert document["splitFuse"] == {
        "enabled": None,
        "splitChunkTokens": 512,
        "splitStartType": False,
        "splitStartBatchSize": 16,
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"maxBatchSize": 0}, "greater than or equal to 1"),
        ({"maxBatchSize": "8"}, "valid integer"),
        ({"maxBachSize": 8}, "unknown field 'maxBachSize'; did you mean 'maxBatchSize'?"),
        ({"cacheBlockSize": 100}, "100 is not a multiple of 16"),
        ({"cacheBlockSize": 256}, "less than or equal to 128"),
        ({"maxBatchSize": 8, "maxPrefillBatchSize": 9}, "maxPrefillBatchSize 9 is larger than"),
        ({"splitFuse": {"splitChunkTokens": 40}}, "40 is not a multiple of 16"),
        ({"splitFuse": {"splitChunkTokens": 8208}}, "less than or equal to 8192"),
        ({"splitFuse": {"enabled": True}}, "needs templateType Mix"),
        ({"templateType": "Mix", "splitFuse": {"enabled": False}}, "set templateType: Standard"),
        ({"maxBatchSize": 8, "splitFuse": {"splitStartBatchSize": 9}}, "splitStartBatchSize 9"),
        ({"templateType": "Mixed"}, "'Standard' or 'Mix'"),
    ],
)
def test_what_cannot_be_is_refused_with_name_and_range(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        ScheduleConfig.model_validate(settings)

    assert words in str(refused.value)


def test_a_default_never_stands_in_the_way_of_a_small_batch() -> None:
    schedule = ScheduleConfig(max_batch_size=4)

    assert schedule.prefill_rows == 4


def test_zero_prefill_rows_mean_max_batch_size() -> None:
    assert ScheduleConfig(max_prefill_batch_size=0, max_batch_size=7).prefill_rows == 7


def test_npu_mem_size_zero_is_neither_automatic_nor_a_size() -> None:
    with pytest.raises(ValidationError, match="neither -1"):
        EngineConfig(model_path="x", npu_mem_size=0)
