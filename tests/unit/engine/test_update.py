"""The update after a step: plain rows end as those that may have any number of tokens."""

from collections.abc import Sequence as Sequences
from dataclasses import dataclass, fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.api.step import Advance, SampledToken, Step, StepResult
from tandem_engine.scheduler.sequence import RUNNING, Sequence
from tandem_engine.scheduler.update import StepUpdater
from tandem_engine.testing import CountingRunner
from tests.unit.engine.scheduling import BLOCK_SIZE, Bench, mix, request, standard, tokens

TPOT = Slo(tpot=LatencyTarget(target="300ms"))


@dataclass(frozen=True)
class Wish:
    """A request, and when it comes."""

    step: int
    num_prompt: int
    num_output: int
    choices: int
    beams: bool
    stops_at: int | None
    min_tokens: int


def wishes() -> st.SearchStrategy[list[Wish]]:
    one = st.builds(
        Wish,
        step=st.integers(0, 12),
        num_prompt=st.integers(1, 3 * BLOCK_SIZE),
        num_output=st.integers(2, 3 * BLOCK_SIZE),
        choices=st.sampled_from([1, 1, 1, 2]),
        beams=st.booleans(),
        stops_at=st.none() | st.integers(0, 20),
        min_tokens=st.integers(0, 2),
    )
    return st.lists(one, min_size=1, max_size=6)


class RowByRow(Bench):
    """Counts each row with its tokens, as it must where rows have drafts."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        updater = UpdaterByRow(self.scheduler._queues, self.scheduler._blocks, has_drafts=True)
        updater.pace = self.scheduler._updater.pace
        self.scheduler._updater = updater


class UpdaterByRow(StepUpdater):
    """Counts no row before it has its tokens."""

    def commit(
        self,
        step: Step,
        rows: Sequences[Sequence],
        result: StepResult,
        now: float,
        *,
        is_reserved: bool,  # noqa: ARG002 - never
    ) -> list[Advance]:
        return [
            advance
            for row, num_tokens in zip(rows, step.num_tokens, strict=True)
            if row.state is RUNNING
            for advance in self._update_row(row, num_tokens, result, now)
        ]


class Shuffled(CountingRunner):
    """Tells what the rows yielded in another order."""

    def run(self, step: Step) -> StepResult:
        result = super().run(step)
        return StepResult(
            tokens=dict(reversed(list(result.tokens.items()))), candidates=result.candidates
        )


def bench_of(
    kind: type[Bench], schedule: ScheduleConfig, slo: Slo | None, **settings: Any
) -> Bench:
    return kind(schedule, slo=slo, num_blocks=40, num_host_blocks=8, **settings)


def come(bench: Bench, expected: list[Wish], at_step: int) -> None:
    for number, each in enumerate(expected):
        if each.step == at_step:
            bench.add(
                request(
                    f"r{number}.",
                    0,
                    each.num_output,
                    # Every other one begins as its neighbour does.
                    prompt=tokens(f"p{number // 2}", each.num_prompt),
                    arrived=bench.now,
                    n=each.choices,
                    use_beam_search=each.beams and each.choices > 1,
                    min_tokens=each.min_tokens,
                    stop_token_ids=() if each.stops_at is None else (each.stops_at,),
                )
            )


def known(bench: Bench) -> list[dict[str, object]]:
    """All that is known of all sequences."""
    # When the next check is due may differ, and the group is the same for both.
    names = [
        each.name for each in fields(Sequence) if each.name not in {"group", "tokens_until_check"}
    ]
    return [{name: getattr(queue, name) for name in names} for queue in bench.scheduler._queues]


@pytest.mark.parametrize("slo", [None, TPOT], ids=["no target", "TPOT"])
@pytest.mark.parametrize(
    "schedule",
    [
        mix(48, schedule={"enable_prefix_cache": True}),
        mix(48, schedule={"enable_prefix_cache": False, "max_batch_size": 3}),
        standard(enable_prefix_cache=True, max_preempt_count=1),
    ],
    ids=["splitfuse with prefixes", "splitfuse in turns", "continuous"],
)
# An example is sixty steps of three schedulers.
@settings(max_examples=settings().max_examples // 5)
@given(expected=wishes())
def test_plain_rows_end_as_rows_that_may_have_drafts(
    schedule: ScheduleConfig, slo: Slo | None, expected: list[Wish]
) -> None:
    plain, row_by_row = (bench_of(kind, schedule, slo) for kind in (Bench, RowByRow))
    shuffled = bench_of(Bench, schedule, slo, runner=Shuffled(block_size=BLOCK_SIZE))
    for at_step in range(60):
        benches = (plain, row_by_row, shuffled)
        for bench in benches:
            come(bench, expected, at_step)
        one, other, third = (bench.step() for bench in benches)

        assert one.step == other.step == third.step
        assert one.advances == other.advances == third.advances
        assert known(plain) == known(row_by_row) == known(shuffled)


def test_a_row_is_checked_only_where_something_changes() -> None:
    bench = Bench(mix(64), request("a", 10, 40))
    bench.run(1)
    counts = []
    for _ in range(24):
        bench.step()
        counts.append(next(iter(bench.scheduler._queues)).tokens_until_check)

    # 12 known tokens after the first decode. The 16th fills the block, the 17th finds it computed
    # and needs another one, the 18th finds it there. So do the 32nd, the 33rd and the 34th.
    assert counts[:6] == [3, 2, 1, 0, 0, 0]
    assert counts[6:] == [*range(13, -1, -1), 0, 0, 13, 12]


def test_a_sequence_that_lacks_a_block_and_is_not_listed_is_found_out() -> None:
    bench = Bench(mix(64), request("a", 15, 40))
    bench.run(2)
    bench.scheduler._blocks.dp_ranks[0]._short.clear()

    with pytest.raises(AssertionError, match="is not listed as short"):
        bench.scheduler.check_integrity()


def test_tokens_of_running_sequences_that_are_miscounted_are_found_out() -> None:
    bench = Bench(mix(64), request("a", 15, 40))
    bench.run(1)
    bench.scheduler._queues.longest_tokens += 1

    with pytest.raises(AssertionError, match="miscounted"):
        bench.scheduler.check_integrity()


def test_a_tokens_own_row_gets_it_whatever_the_order_is() -> None:
    bench = Bench(mix(64), *(request(each, 4, 4) for each in "ab"))
    bench.run(1)
    step = bench.scheduler.schedule(1.0)
    result = StepResult(tokens={"b": [SampledToken(7)], "a": [SampledToken(8)]})

    advances = bench.scheduler.complete(step, result, 2.0)

    assert [(each.sequence_id, each.tokens[0].token_id) for each in advances] == [
        ("a", 8),
        ("b", 7),
    ]
