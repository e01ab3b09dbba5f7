"""Requests that never stop coming: every sequence ends within a bound, whatever the settings.

A finite trace cannot show that a sequence starves: in the end all others have gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from typing import Any
from zlib import crc32

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.request import Request
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.scheduler.orders.order import MAX_PREEMPTIONS
from tests.unit.engine.scheduling import STEP_S, Bench, mix, request, standard, tokens
from tests.unit.engine.test_scheduler_properties import schedules, slos

ROWS = 3
LONGEST = 54
"""Tokens of the longest request, prompt and output."""
AGE_S = 6.0
"""Four times prefillExpectedTime, or the target TTFT, at most: the age bound."""


def bound(num_before: int, *, rows: int = ROWS) -> int:
    """Steps in which a request ends that has so many others before it.

    Once all of those have ended and it has waited for the age bound, it is the first in line: it
    starts when those that run have ended, at the latest. Then it may lose its blocks so many times
    to others that came later, and once to a claim, until it keeps them to its end. Of rows + 1
    steps one at least is of use to the first of those that run in the order of victims, which
    keeps its blocks, and gets a token or more of it.
    """
    drain = (rows + 1) * rows * LONGEST
    return int(AGE_S / STEP_S) + drain * (MAX_PREEMPTIONS + 3) * (num_before + 1)


@dataclass
class Stream:
    """Small requests, some at every step, without end."""

    prompts: list[int]
    outputs: list[int]
    per_step: int = 2
    priority: int = 5
    prefix: str = ""
    """Common beginning of their prompts; empty: they have nothing in common."""
    _numbers: Iterator[int] = field(default_factory=count)

    def next(self, now: float) -> list[Request]:
        return [self._one(next(self._numbers), now) for _ in range(self.per_step)]

    def _one(self, number: int, now: float) -> Request:
        name = f"s{number}"
        length = self.prompts[number % len(self.prompts)]
        return request(
            name,
            0,
            self.outputs[number % len(self.outputs)],
            prompt=tokens(self.prefix or name, length),
            arrived=now,
            priority=self.priority,
        )


def mixed(priority: int = 5) -> list[Request]:
    """One that grows, one that is in its way, choices, and beams."""
    return [
        request("old", 20, 30, priority=priority),
        request("long", 46, 6, priority=priority, arrived=0.01),
        request("n", 20, 20, n=2, priority=priority, arrived=0.02),
        request("b", 18, 10, n=2, use_beam_search=True, priority=priority, arrived=0.03),
    ]


def steps_until_all_end(bench: Bench, many: list[Request], stream: Stream) -> int:
    """Steps until they have ended while others come at every step."""
    bench.add(*many)
    expected = {each for one in many for each in one.sequences}
    most = bound(len(many) - 1, rows=bench.scheduler._policies.schedule.max_batch_size)
    for number in range(most):
        bench.add(*stream.next(bench.now))
        progress = bench.engine.step(partial(next, iter((bench.now, bench.now + STEP_S))))
        bench.now += STEP_S
        assert not progress.failed
        for advance in progress.advances:
            if advance.sequence_id in expected:
                bench.said.setdefault(advance.sequence_id, []).extend(
                    token.token_id for token in advance.tokens
                )
            if advance.finish_reason is not None:
                expected.discard(advance.sequence_id)
        if not expected:
            bench.scheduler.check_integrity()
            return number + 1
    raise AssertionError(f"{sorted(expected)} have not ended after {most} steps: {bench.record}")


def bench_of(schedule: ScheduleConfig, slo: Slo | None = None, num_blocks: int = 8) -> Bench:
    swaps = schedule.max_preempt_count
    return Bench(schedule, num_blocks=num_blocks, num_host_blocks=16 if swaps else 0, slo=slo)


COMMON: dict[str, Any] = {
    "max_batch_size": ROWS,
    "max_prefill_batch_size": ROWS,
    "max_prefill_tokens": 64,
    "max_queue_delay_microseconds": 500,
    "prefill_expected_time": 250,
}
# `make test` has each type of prefill and of decode once.
POLICY_TYPES = [
    pytest.param(prefill, decode, marks=() if (prefill + decode) % 4 == 0 else pytest.mark.slow)
    for prefill, decode in product((0, 1, 2, 3), (0, 1, 2, 3))
]
SWAPS = [pytest.param(0, id="recompute"), pytest.param(2, id="swap")]
BOTH = Slo(ttft=LatencyTarget(target="250ms"), tpot=LatencyTarget(target="100ms"))
SLOS = [
    pytest.param(Slo(), id="no SLO"),
    pytest.param(Slo(ttft=LatencyTarget(target="250ms")), id="TTFT"),
    pytest.param(Slo(tpot=LatencyTarget(target="100ms")), id="TPOT"),
    pytest.param(BOTH, id="both"),
]


# Prompts, outputs, and what the prompts begin with.
STREAMS: list[tuple[list[int], list[int], str]] = [
    ([5, 15, 30, 14, 1], [1, 4, 6, 3], ""),
    ([3, 7], [2, 5], ""),
    ([4, 9], [1], ""),
    ([15, 31], [4, 20], ""),
    ([17, 40, 33], [4, 12, 2], "same"),
]
# Of a lower rank, where the order goes by length.
RANKED: dict[int, list[int]] = {4: [47, 48], 5: [5, 15, 14, 1]}


def streams_of(schedule: ScheduleConfig) -> list[tuple[list[int], list[int], str]]:
    """One of them, by the settings; all of them, which takes minutes, where examples are drawn."""
    first = crc32(schedule.model_dump_json().encode()) % len(STREAMS)
    num = max(1, min(len(STREAMS), settings().max_examples // 40))
    return [*STREAMS[first:], *STREAMS[:first]][:num]


def assert_all_end(schedule: ScheduleConfig, slo: Slo | None = None) -> None:
    for prompts, outputs, prefix in streams_of(schedule):
        bench = bench_of(schedule, slo)
        ranked = RANKED.get(schedule.split_fuse.policy_type, prompts)
        few = [min(each, LONGEST - max(ranked)) for each in outputs]
        steps_until_all_end(bench, mixed(), Stream(ranked, few, prefix=prefix))
        for name, length in {"old": 30, "long": 6, "n0": 20, "n1": 20}.items():
            assert bench.said[name] == list(range(length))


@pytest.mark.parametrize("swaps", SWAPS)
@pytest.mark.parametrize(("prefill", "decode"), POLICY_TYPES)
@pytest.mark.parametrize("strategy", ["static", "dynamic", "chunked"])
def test_all_end(strategy: Any, prefill: Any, decode: Any, swaps: int) -> None:
    policies = {"prefill_policy_type": prefill, "decode_policy_type": decode}
    assert_all_end(standard(strategy=strategy, max_preempt_count=swaps, **policies, **COMMON))


@pytest.mark.parametrize("swaps", SWAPS)
@pytest.mark.parametrize(("prefill", "decode"), POLICY_TYPES)
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_all_end_in_continuous_batches(stage: Any, prefill: Any, decode: Any, swaps: int) -> None:
    policies = {"prefill_policy_type": prefill, "decode_policy_type": decode}
    assert_all_end(
        standard(stage_select_policy=stage, max_preempt_count=swaps, **policies, **COMMON)
    )


@pytest.mark.parametrize("swaps", SWAPS)
@pytest.mark.parametrize(("prefill", "decode"), POLICY_TYPES)
@pytest.mark.parametrize("slo", SLOS)
def test_all_end_in_mixed_steps(slo: Slo, prefill: Any, decode: Any, swaps: int) -> None:
    policies = {"prefill_policy_type": prefill, "decode_policy_type": decode}
    assert_all_end(mix(32, schedule={"max_preempt_count": swaps, **policies, **COMMON}), slo)


@pytest.mark.parametrize("swaps", SWAPS)
@pytest.mark.parametrize("policy", [4, 5, 6, 7])
@pytest.mark.parametrize("slo", SLOS)
def test_all_end_under_a_policy_of_split_fuse(slo: Slo, policy: Any, swaps: int) -> None:
    assert_all_end(
        mix(32, policy_type=policy, schedule={"max_preempt_count": swaps, **COMMON}), slo
    )


lengths = st.lists(st.integers(1, 30), min_size=1, max_size=5)


@given(
    schedule=schedules(),
    slo=slos,
    num_blocks=st.integers(8, 14),
    num_host_blocks=st.sampled_from([0, 3, 16]),
    prompts=lengths,
    outputs=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    prefix=st.sampled_from(["", "old0", "long", "same"]),
    per_step=st.integers(1, 3),
)
@example(
    # The prompts of one token, of which each starts as a row that decodes.
    schedule=standard(max_batch_size=3, max_queue_delay_microseconds=1_000_000),
    slo=Slo(),
    num_blocks=8,
    num_host_blocks=0,
    prompts=[1],
    outputs=[1],
    prefix="",
    per_step=1,
)
@example(
    schedule=standard(strategy="chunked", max_batch_size=3),
    slo=Slo(),
    num_blocks=8,
    num_host_blocks=0,
    prompts=[1],
    outputs=[1],
    prefix="",
    per_step=1,
)
@example(
    # A batch of which one beam starts again without the other.
    schedule=standard(
        strategy="dynamic",
        max_prefill_batch_size=0,
        max_prefill_tokens=80,
        prefill_policy_type=2,
        decode_policy_type=3,
        max_batch_size=7,
        max_preempt_count=1,
        max_queue_delay_microseconds=500,
        max_first_token_wait_time=100,
        enable_prefix_cache=False,
        async_scheduling_enable=True,
    ),
    slo=Slo(),
    num_blocks=13,
    num_host_blocks=3,
    prompts=[13, 7, 8, 1, 14],
    outputs=[11],
    prefix="long",
    per_step=1,
)
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_all_end_whatever_the_settings_and_arrivals(
    schedule: ScheduleConfig,
    slo: Slo,
    num_blocks: int,
    num_host_blocks: int,
    prompts: list[int],
    outputs: list[int],
    prefix: str,
    per_step: int,
) -> None:
    bench = Bench(schedule, num_blocks=num_blocks, num_host_blocks=num_host_blocks, slo=slo)
    ranked = RANKED.get(schedule.split_fuse.policy_type, prompts)
    few = [min(each, LONGEST - max(ranked)) for each in outputs]
    many = [one for one in mixed() if len(one.sequences) <= schedule.max_batch_size]
    steps_until_all_end(bench, many, Stream(ranked, few, per_step, prefix=prefix))


@pytest.mark.parametrize("swaps", SWAPS)
@pytest.mark.parametrize(
    ("schedule", "low", "high"),
    [
        pytest.param(
            mix(32, schedule={"prefill_policy_type": 2, "decode_policy_type": 2}),
            request("low", 20, 20, priority=3),
            Stream([14, 15], [8], priority=2),
            id="priority",
        ),
        pytest.param(
            mix(32, policy_type=4), request("low", 20, 20), Stream([14, 15], [8]), id="SJF"
        ),
        pytest.param(
            mix(32, policy_type=5), request("low", 20, 20), Stream([31, 30], [8]), id="LJF"
        ),
    ],
)
def test_a_lower_priority_has_no_bound_but_the_end_of_those_before_it(
    schedule: ScheduleConfig, low: Request, high: Stream, swaps: int
) -> None:
    schedule = schedule.model_copy(update={**COMMON, "max_preempt_count": swaps})
    bench = bench_of(schedule)
    bench.add(*high.next(0.0), *high.next(0.0), low)
    for _ in range(80):
        bench.add(*high.next(bench.now))
        bench.step()
    assert "low" not in bench.reasons

    bench.finish(most_steps=20_000)
    assert bench.said["low"] == list(range(20))


@pytest.mark.parametrize("num_output", [1, 6])
def test_one_that_is_swapped_out_comes_back_before_those_that_come_later(num_output: int) -> None:
    schedule = mix(32, schedule={**COMMON, "max_preempt_count": 1})
    bench = bench_of(schedule, num_blocks=6)
    bench.add(request("old", 30, 40), request("long", 46, 6, arrived=0.01))
    bench.run(6)
    assert bench.engine.stats().num_swapped == 1

    stream = Stream([3], [num_output], per_step=4)
    for _ in range(100):
        bench.add(*stream.next(bench.now))
        if "long" in bench.step().step.sequence_ids:
            return
        assert not any(each.startswith("s") for each in bench.said)
    raise AssertionError("it never came back")
