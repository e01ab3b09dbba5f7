"""Values that MindIE rewrites at a start, with figures worked out by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.rewrites import (
    LEFT_TO_REPLICA,
    consequences,
    resolve_schedule,
    rewrite,
    schedule_document,
    with_batch_size,
    with_longest_output,
    with_slo_defaults,
)
from tandem_engine.api.slo import LatencyTarget, Slo

NO_N = "maxN is not given; it is {}."


def of(**given: Any) -> ScheduleConfig:
    return ScheduleConfig.model_validate(given)


def rewritten(
    schedule: ScheduleConfig, max_seq_len: int = 2560, max_input_token_len: int = 2048
) -> tuple[ScheduleConfig, tuple[str, ...]]:
    return rewrite(schedule, max_seq_len=max_seq_len, max_input_token_len=max_input_token_len)


def test_a_schedule_that_is_in_force_already_is_left_alone() -> None:
    resolved, said = rewritten(of(maxN=128))

    assert said == ()
    assert resolved == resolve_schedule(of(maxN=128))
    assert rewritten(resolved) == (resolved, ())


@pytest.mark.parametrize(
    ("schedule", "field", "value", "sentence"),
    [
        (
            of(maxN=1, maxPrefillBatchSize=0),
            "max_prefill_batch_size",
            200,
            "maxPrefillBatchSize 0 means maxBatchSize, 200.",
        ),
        (
            of(maxN=1, maxBatchSize=8),
            "max_prefill_batch_size",
            8,
            "maxPrefillBatchSize 50 is lowered to maxBatchSize 8.",
        ),
        (of(), "max_n", 128, NO_N.format(128)),
        (of(maxBatchSize=60), "max_n", 60, NO_N.format(60)),
        (
            of(maxN=1, supportSelectBatch=True),
            "stage_select_policy",
            1,
            "supportSelectBatch true means stageSelectPolicy 1.",
        ),
        (
            of(maxN=1, supportSelectBatch=True, templateType="Mix"),
            "stage_select_policy",
            0,
            "supportSelectBatch true has no effect with strategy splitfuse.",
        ),
        # The longest request is maxSeqLen, which is as much as 2048 in and 512 out.
        (
            of(maxN=1, maxPrefillTokens=2048),
            "max_prefill_tokens",
            2560,
            "maxPrefillTokens 2048 is raised to 2560, the longest request, "
            "as strategy continuous cuts no prompt.",
        ),
        # The longest request is 2048 in and 100 out, less than maxSeqLen.
        (
            of(maxN=1, maxPrefillTokens=2048, maxIterTimes=100, strategy="static"),
            "max_prefill_tokens",
            2148,
            "maxPrefillTokens 2048 is raised to 2148, the longest request, "
            "as strategy static cuts no prompt.",
        ),
        (
            of(maxN=1, maxPrefillTokens=100, templateType="Mix"),
            "max_batch_size",
            100,
            "maxBatchSize 200 is lowered to maxPrefillTokens 100, "
            "and with it what may not exceed it.",
        ),
    ],
)
def test_each_rewrite_is_told_in_one_sentence(
    schedule: ScheduleConfig, field: str, value: int, sentence: str
) -> None:
    resolved, said = rewritten(schedule)

    assert getattr(resolved, field) == value
    assert sentence in said


@pytest.mark.parametrize(
    "cutting", [{"templateType": "Mix"}, {"strategy": "chunked"}], ids=["splitfuse", "chunked"]
)
def test_a_step_stays_smaller_than_a_prompt_that_is_cut(cutting: dict[str, str]) -> None:
    resolved, said = rewritten(of(maxN=1, maxPrefillTokens=300, **cutting))

    assert resolved.max_prefill_tokens == 300
    assert said == ()


def test_the_batch_is_lowered_to_the_step_after_the_step_was_raised() -> None:
    resolved, said = rewritten(of(maxN=1, maxPrefillTokens=100), max_seq_len=150)

    assert resolved.max_prefill_tokens == 150
    assert resolved.max_batch_size == 150
    assert len(said) == 2


def test_nothing_exceeds_a_batch_that_was_lowered() -> None:
    asked = of(
        templateType="Mix",
        maxPrefillTokens=20,
        maxPrefillBatchSize=50,
        maxPreemptCount=30,
        maxN=40,
        splitFuse={"splitStartBatchSize": 25},
    )

    resolved, _ = rewritten(asked)

    assert resolved.max_batch_size == 20
    assert resolved.max_prefill_batch_size == 20
    assert resolved.max_preempt_count == 20
    assert resolved.max_n == 20
    assert resolved.split_fuse.split_start_batch_size == 20


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


schedules = st.builds(
    lambda form, rest: ScheduleConfig.model_validate(form | rest),
    st.sampled_from(
        [
            {},
            {"templateType": "Mix"},
            *({"strategy": name} for name in ("static", "dynamic", "continuous", "chunked")),
        ]
    ),
    some(
        maxBatchSize=st.integers(16, 9000),
        maxPrefillBatchSize=st.integers(0, 16),
        maxPrefillTokens=st.integers(64, 9000),
        maxIterTimes=st.integers(1, 600),
        maxPreemptCount=st.integers(0, 16),
        maxN=st.integers(1, 16),
        supportSelectBatch=st.booleans(),
        splitFuse=some(
            splitStartBatchSize=st.integers(0, 16),
            prefillChunkSize=st.integers(0, 64),
            maxNumPartialPrefills=st.integers(1, 64),
        ),
    ),
)


@given(schedules)
def test_a_resolved_schedule_resolves_to_itself_and_reads_back(schedule: ScheduleConfig) -> None:
    resolved = resolve_schedule(schedule)

    assert resolve_schedule(resolved) == resolved
    assert ScheduleConfig.model_validate(resolved.document()) == resolved


@given(schedules, st.integers(2, 4096), st.data())
def test_what_was_rewritten_is_in_force(
    schedule: ScheduleConfig, max_seq_len: int, data: st.DataObject
) -> None:
    max_input = data.draw(st.integers(1, max_seq_len - 1))

    resolved, _ = rewritten(schedule, max_seq_len, max_input)

    assert rewritten(resolved, max_seq_len, max_input) == (resolved, ())
    assert resolved.max_batch_size <= resolved.max_prefill_tokens
    if not resolved.cuts_prompts:
        assert resolved.max_prefill_tokens >= min(max_seq_len, max_input + resolved.max_iter_times)
    assert ScheduleConfig.model_validate(resolved.document()) == resolved
    assert resolved.batching == schedule.batching


def test_what_the_replica_may_choose_stays_open_until_it_has_chosen() -> None:
    resolved = resolve_schedule(ScheduleConfig())

    assert set(LEFT_TO_REPLICA).isdisjoint(resolved.model_fields_set)
    assert {"maxBatchSize", "maxIterTimes"}.isdisjoint(schedule_document(resolved))
    assert "max_batch_size" in with_batch_size(resolved, 7).model_fields_set


def test_a_smaller_batch_lowers_what_may_not_exceed_it() -> None:
    written = ScheduleConfig(max_prefill_batch_size=50, max_n=100)
    small = with_batch_size(written, 8)

    assert (small.max_batch_size, small.max_prefill_batch_size, small.max_n) == (8, 8, 8)


SLO = Slo(ttft=LatencyTarget(target="1s"))


def test_a_target_cuts_every_prompt_and_no_answer() -> None:
    chosen = with_slo_defaults(ScheduleConfig(), SLO, max_seq_len=4096)

    assert chosen.is_split_fuse
    assert chosen.split_start_rows == 0
    assert chosen.max_iter_times == 4096
    assert list(consequences(resolve_schedule(chosen), SLO, max_seq_len=4096)) == []


def test_without_a_target_the_defaults_are_mindies() -> None:
    schedule = with_slo_defaults(ScheduleConfig(), Slo(), max_seq_len=4096)

    assert (schedule.template_type, schedule.max_iter_times) == ("Standard", 512)
    assert schedule.split_fuse.split_start_batch_size == 16


def test_an_output_that_the_service_leaves_open_is_filled_in_by_the_replica() -> None:
    open_output = with_slo_defaults(ScheduleConfig(), SLO)
    assert "max_iter_times" not in open_output.model_fields_set

    assert with_longest_output(open_output, SLO, max_seq_len=99).max_iter_times == 99
    # A given value stays.
    written = ScheduleConfig(max_iter_times=512)
    assert with_longest_output(written, SLO, max_seq_len=4096).max_iter_times == 512
