"""Settings: MindIE's names, ranges and defaults; refusals that help."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from tandem_engine.api.config import EngineConfig, ScheduleConfig


class Range(NamedTuple):
    """A whole number of the schedule, as MindIE documents it."""

    default: int | None
    low: int
    high: int | None
    beside: Mapping[str, Any] = MappingProxyType({})
    """Settings that the ends of the range need."""


MANY = {"maxBatchSize": 819200}
RANGES = {
    "cacheBlockSize": Range(128, 16, 128),
    "maxPrefillBatchSize": Range(50, 0, None),
    "maxPrefillTokens": Range(8192, 1, 4194304),
    "prefillTimeMsPerReq": Range(150, 0, 1000),
    "decodeTimeMsPerReq": Range(50, 0, 1000),
    "maxBatchSize": Range(200, 1, 819200),
    "maxIterTimes": Range(512, 1, None),
    "maxPreemptCount": Range(0, 0, None),
    "maxQueueDelayMicroseconds": Range(5000, 500, 1000000),
    "maxFirstTokenWaitTime": Range(2500, 0, 3600000),
    "maxN": Range(None, 1, 8192, MANY),
    "prefillExpectedTime": Range(1500, 1, 10000),
    "decodeExpectedTime": Range(50, 1, 10000),
    "splitFuse.splitChunkTokens": Range(512, 16, 8192),
    "splitFuse.splitStartBatchSize": Range(16, 0, None),
    "splitFuse.prefillChunkSize": Range(None, 0, 4194304, {"maxPrefillTokens": 4194304}),
    "splitFuse.maxNumPartialPrefills": Range(64, 1, 64),
    "splitFuse.longPrefillTokenThreshold": Range(1024, 1, 8192),
    "splitFuse.maxLongPartialPrefills": Range(8, 1, 64),
}
MIX = {"templateType": "Mix"}
CHOICES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "templateType": (("Standard", "Mix"), {}),
    "strategy": (("continuous", "static", "dynamic", "chunked"), {}),
    "prefillPolicyType": ((0, 1, 2, 3), {}),
    "decodePolicyType": ((0, 1, 2, 3), {}),
    "stageSelectPolicy": ((0, 1, 2), {}),
    "splitFuse.policyType": ((0, 4, 5, 6, 7), MIX),
}
SWITCHES = {
    "supportSelectBatch": False,
    "dynamicBatchSizeEnable": False,
    "bufferResponseEnabled": False,
    "asyncSchedulingEnable": False,
    "enablePrefixCache": True,
    "noEvict": False,
    "splitFuse.splitType": False,
    "splitFuse.splitStartType": False,
}
LOWEST = {name: known.low for name, known in RANGES.items()}
HIGHEST = {name: known.high for name, known in RANGES.items() if known.high is not None}


def settings(name: str, value: Any, beside: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A schedule with one parameter, which may be one of splitFuse, and others beside it."""
    part, _, last = name.rpartition(".")
    return dict(beside or {}) | ({part: {last: value}} if part else {name: value})


def value_of(schedule: ScheduleConfig, name: str) -> Any:
    document: Any = schedule.document()
    for part in name.split("."):
        document = document[part]
    return document


def refusal(given: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        ScheduleConfig.model_validate(given)
    return str(refused.value)


def test_every_parameter_is_in_one_of_the_tables() -> None:
    document = ScheduleConfig().document()
    split = document.pop("splitFuse")
    names = {*document, *(f"splitFuse.{name}" for name in split)}

    assert names == {*RANGES, *CHOICES, *SWITCHES, "splitFuse.enabled"}


@pytest.mark.parametrize("name", RANGES)
def test_the_defaults_are_mindies(name: str) -> None:
    assert value_of(ScheduleConfig(), name) == RANGES[name].default


@pytest.mark.parametrize("name", LOWEST)
def test_the_lowest_value_is_taken_and_the_one_below_is_not(name: str) -> None:
    low, beside = RANGES[name].low, RANGES[name].beside

    taken = ScheduleConfig.model_validate(settings(name, low, beside))
    said = refusal(settings(name, low - 1, beside))

    assert value_of(taken, name) == low
    assert name in said.splitlines()[1]
    assert f"greater than or equal to {low} " in said
    assert f"input_value={low - 1}" in said


@pytest.mark.parametrize("name", HIGHEST)
def test_the_highest_value_is_taken_and_the_one_above_is_not(name: str) -> None:
    high, beside = HIGHEST[name], RANGES[name].beside

    taken = ScheduleConfig.model_validate(settings(name, high, beside))
    said = refusal(settings(name, high + 1, beside))

    assert value_of(taken, name) == high
    assert name in said.splitlines()[1]
    assert f"less than or equal to {high} " in said
    assert f"input_value={high + 1}" in said


@pytest.mark.parametrize("name", [*RANGES, "prefillPolicyType", "splitFuse.policyType"])
@pytest.mark.parametrize("value", ["1", 1.0, True])
def test_what_is_no_whole_number_is_not_made_one(name: str, value: Any) -> None:
    said = refusal(settings(name, value))

    assert name in said.splitlines()[1]
    assert "Input should be a valid integer" in said


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_of_its_values(name: str) -> None:
    values, beside = CHOICES[name]

    for value in values:
        assert value_of(ScheduleConfig.model_validate(settings(name, value, beside)), name) == value
    said = refusal(settings(name, type(values[0])("9"), beside))
    assert name in said.splitlines()[1]
    assert all(repr(value) in said for value in values[:4])


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_true_or_false(name: str) -> None:
    assert value_of(ScheduleConfig(), name) == SWITCHES[name]
    for value in (True, False):
        assert value_of(ScheduleConfig.model_validate(settings(name, value)), name) == value
    assert "Input should be a valid boolean" in refusal(settings(name, 1))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"maxBachSize": 8}, "unknown field 'maxBachSize'; did you mean 'maxBatchSize'?"),
        ({"cacheBlockSize": 100}, "100 is not a multiple of 16"),
        ({"splitFuse": {"splitChunkTokens": 40}}, "40 is not a multiple of 16"),
        (
            {"splitFuse": {"enabled": True}},
            "splitFuse.enabled needs templateType Mix, not Standard; set templateType: Mix or "
            "leave splitFuse.enabled out",
        ),
        (
            MIX | {"splitFuse": {"enabled": False}},
            "templateType Mix needs splitFuse.enabled true, not false; set templateType: Standard "
            "to run without SplitFuse",
        ),
        (
            {"strategy": "splitfuse"},
            "strategy splitfuse needs templateType Mix, not Standard; set templateType: Mix or "
            "leave strategy out",
        ),
        (
            MIX | {"strategy": "chunked"},
            "strategy chunked needs templateType Standard, not Mix; set templateType: Standard or "
            "leave strategy out",
        ),
        (
            {"splitFuse": {"policyType": 6}},
            "splitFuse.policyType 6 orders the steps of templateType Mix, not Standard; set "
            "templateType: Mix, or prefillPolicyType in its place",
        ),
        (
            MIX | {"prefillPolicyType": 3, "splitFuse": {"policyType": 6}},
            "prefillPolicyType 3 and splitFuse.policyType 6 are both an order of requests; "
            "leave one of the two out",
        ),
        (
            MIX | {"decodePolicyType": 2, "splitFuse": {"policyType": 4}},
            "decodePolicyType 2 and splitFuse.policyType 4 are both an order of requests; "
            "leave one of the two out",
        ),
        *(
            (
                beside | {"stageSelectPolicy": 2},
                f"stageSelectPolicy 2 needs strategy continuous, not {strategy}, which leaves no "
                "choice between prefill and decode; leave one of the two out",
            )
            for beside, strategy in [
                (MIX, "splitfuse"),
                ({"strategy": "static"}, "static"),
                ({"strategy": "dynamic"}, "dynamic"),
                ({"strategy": "chunked"}, "chunked"),
            ]
        ),
        (
            {"stageSelectPolicy": 2, "supportSelectBatch": True},
            "supportSelectBatch true means stageSelectPolicy 1, not 2; leave one of the two out",
        ),
        (
            MIX | {"dynamicBatchSizeEnable": True},
            "dynamicBatchSizeEnable needs templateType Standard, not Mix; leave it out, and give "
            "an SLO (spec.slo), by which the budget of every step is chosen",
        ),
        *(
            (
                settings(name, 9, {"maxBatchSize": 8}),
                f"{name} 9 is larger than maxBatchSize 8; lower it or raise maxBatchSize",
            )
            for name in (
                "maxPrefillBatchSize",
                "maxPreemptCount",
                "maxN",
                "splitFuse.splitStartBatchSize",
            )
        ),
        (
            {"maxPrefillTokens": 100, "splitFuse": {"prefillChunkSize": 101}},
            "splitFuse.prefillChunkSize 101 is larger than maxPrefillTokens 100; "
            "lower it or raise maxPrefillTokens",
        ),
        (
            {"splitFuse": {"maxNumPartialPrefills": 4, "maxLongPartialPrefills": 5}},
            "maxLongPartialPrefills 5 is larger than maxNumPartialPrefills 4; "
            "lower it or raise maxNumPartialPrefills",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_way_out(
    given: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(given)


@pytest.mark.parametrize(
    ("given", "batching"),
    [
        ({}, "continuous"),
        (MIX, "splitfuse"),
        ({"strategy": "static"}, "static"),
        ({"strategy": "dynamic"}, "dynamic"),
        ({"strategy": "chunked"}, "chunked"),
        (MIX | {"strategy": "splitfuse"}, "splitfuse"),
    ],
)
def test_a_strategy_that_is_not_written_follows_the_template(
    given: dict[str, Any], batching: str
) -> None:
    schedule = ScheduleConfig.model_validate(given)

    assert schedule.batching == batching
    assert schedule.cuts_prompts == (batching in {"chunked", "splitfuse"})


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({}, 0),
        ({"stageSelectPolicy": 2}, 2),
        ({"supportSelectBatch": True}, 1),
        ({"supportSelectBatch": True, "stageSelectPolicy": 0}, 1),
        ({"supportSelectBatch": True, "stageSelectPolicy": 1}, 1),
        (MIX | {"supportSelectBatch": True}, 0),
        ({"strategy": "chunked", "supportSelectBatch": True}, 0),
    ],
)
def test_support_select_batch_is_a_name_of_stage_select_policy_1(
    given: dict[str, Any], policy: int
) -> None:
    assert ScheduleConfig.model_validate(given).stage_policy == policy


def test_a_default_never_stands_in_the_way_of_a_small_batch() -> None:
    schedule = ScheduleConfig.model_validate(
        {"maxBatchSize": 4, "splitFuse": {"maxNumPartialPrefills": 2}}
    )

    assert schedule.prefill_rows == 4
    assert schedule.largest_n == 4
    assert schedule.split_start_rows == 4
    assert schedule.split_fuse.long_prefills == 2


def test_zero_prefill_rows_mean_max_batch_size() -> None:
    assert ScheduleConfig(max_prefill_batch_size=0, max_batch_size=7).prefill_rows == 7


def test_max_n_is_128_unless_it_is_given() -> None:
    assert ScheduleConfig().largest_n == 128
    assert ScheduleConfig(max_n=3).largest_n == 3
    assert ScheduleConfig(max_n=500, max_batch_size=600).largest_n == 500


def test_a_chunk_of_zero_shares_the_budget_out() -> None:
    schedule = ScheduleConfig.model_validate({"splitFuse": {"prefillChunkSize": 0}})

    assert schedule.split_fuse.largest_chunk is None


def test_npu_mem_size_zero_is_neither_automatic_nor_a_size() -> None:
    with pytest.raises(ValidationError, match="neither -1"):
        EngineConfig(model_path="x", npu_mem_size=0)


@pytest.mark.parametrize("size", [-1, 1048577])
def test_cpu_mem_size_has_a_range(size: int) -> None:
    with pytest.raises(ValidationError, match=f"input_value={size}"):
        EngineConfig(model_path="x", cpu_mem_size=size)


def test_swaps_need_blocks_on_the_host() -> None:
    swapping = ScheduleConfig(max_preempt_count=2)

    for size, blocks in ((0, None), (0, 0), (1, 0)):
        with pytest.raises(ValidationError, match="maxPreemptCount 2 swaps out to host memory"):
            EngineConfig(
                model_path="x", schedule=swapping, cpu_mem_size=size, num_host_blocks=blocks
            )
    for size, blocks in ((1, None), (0, 4)):
        config = EngineConfig(
            model_path="x", schedule=swapping, cpu_mem_size=size, num_host_blocks=blocks
        )
        assert config.schedule.max_preempt_count == 2
