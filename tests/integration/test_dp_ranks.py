"""dp ranks in processes of their own, which share out the rows, give the tokens of one rank."""

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from tandem_engine.api.request import Request
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.dp_batches import DPPart
from tandem_engine.runner.group_executor import GroupExecutor
from tests.integration.bench import (
    HOST_BLOCKS,
    ROOMY,
    SCARCE,
    SCHEDULES,
    Bench,
    Outcome,
    choices_of,
    choices_said,
    crowd,
    mixed,
    said_without_logprobs,
    truth,
    with_async_scheduling,
    without_logprobs,
)
from tests.integration.test_ranks import assert_same, ranks_of, step_until_lost

DP: Final = 2


@pytest.fixture(scope="module")
def pair() -> Iterator[GroupExecutor]:
    """Two dp ranks with room for all; one engine after another uses them."""
    with ranks_of(ParallelShape(dp=DP), sizes=CacheSizes(num_blocks=ROOMY)) as (_, executor):
        yield executor


@pytest.fixture(scope="module")
def scarce_pair() -> Iterator[GroupExecutor]:
    """Two dp ranks whose blocks are scarce."""
    sizes = CacheSizes(num_blocks=SCARCE // DP + 6, num_host_blocks=HOST_BLOCKS)
    with ranks_of(ParallelShape(dp=DP), sizes=sizes) as (_, executor):
        yield executor


def yielding_of(executor: GroupExecutor, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Yielding rows of each dp rank, for each step from now on."""
    exchange = executor._local._dp
    assert exchange is not None
    found: list[tuple[int, ...]] = []
    take = exchange.part

    def part(batch: FlatBatch) -> DPPart:
        taken = take(batch)
        found.append(tuple(map(len, taken.yields)))
        return taken

    monkeypatch.setattr(exchange, "part", part)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", ["continuous", "splitfuse, 48 tokens"])
def test_two_dp_ranks_give_the_tokens_of_one(
    pair: GroupExecutor, monkeypatch: pytest.MonkeyPatch, name: str, *, is_async: bool
) -> None:
    schedule = SCHEDULES[name]
    yielding = yielding_of(pair, monkeypatch)
    if is_async:
        schedule = with_async_scheduling(schedule)

    outcome = Bench(schedule, executor=pair, dp=DP).run(crowd(), apart=2)

    assert_same(outcome, truth())
    assert outcome.stats.num_hit_tokens > 0
    both = [step for step in yielding if all(step)]
    assert len(both) > len(yielding) / 2


@pytest.mark.parametrize(
    "swaps",
    # `make test` takes the one that has most parts: choices, pre-emption and host blocks.
    [pytest.param(0, marks=pytest.mark.slow), 8],
    ids=["recompute", "swap"],
)
def test_preempted_sequences_and_choices_say_the_same_on_two_dp_ranks(
    scarce_pair: GroupExecutor, swaps: int
) -> None:
    def answer(requests: Sequence[Request]) -> Outcome:
        bench = Bench(
            mixed(48, max_preempt_count=swaps),
            num_blocks=SCARCE // DP + 6,
            num_host_blocks=HOST_BLOCKS,
            executor=scarce_pair,
            dp=DP,
        )
        return bench.run(requests)

    outcome = answer([*crowd(), *choices_of(41)])

    assert_same(outcome, truth(), choices_said())
    assert outcome.stats.num_preemptions > 0
    assert (outcome.stats.num_swaps > 0) == bool(swaps)
    assert_same(answer(without_logprobs(crowd())), said_without_logprobs())


@pytest.mark.slow
def test_a_dp_rank_without_rows_keeps_step(
    pair: GroupExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    yielding = yielding_of(pair, monkeypatch)
    bench = Bench(SCHEDULES["continuous"], executor=pair, dp=DP)

    one = bench.run(crowd()[:1])

    assert_same(one, truth())
    assert set(yielding) == {(1, 0)}
    assert_same(Bench(SCHEDULES["continuous"], executor=pair, dp=DP).run(crowd()), truth())


@pytest.mark.slow
def test_a_killed_dp_rank_is_named() -> None:
    with ranks_of(ParallelShape(dp=DP), timeout_s=10.0) as (group, executor):
        (pid,) = group.pids
        bench = Bench(mixed(48), executor=executor, dp=DP)
        for one in crowd():
            bench.engine.add(one)
        bench.engine.step(lambda: 0.0)
        os.kill(pid, signal.SIGKILL)
        # So that it is found when the next step is handed out, and its error holds the channel.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

        reason = step_until_lost(bench)

        assert "Rank 1" in reason
        assert "SIGKILL" in reason
        bench.engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [ParallelShape(tp=2, dp=DP), ParallelShape(pp=2, dp=DP)], ids=["tp2", "pp2"]
)
def test_dp_ranks_of_two_ranks_each_give_the_tokens_of_one(shape: ParallelShape) -> None:
    sizes = CacheSizes(num_blocks=SCARCE, num_host_blocks=HOST_BLOCKS)
    with ranks_of(shape, sizes=sizes) as (_, executor):
        bench = Bench(
            mixed(48, max_preempt_count=4),
            num_blocks=SCARCE,
            num_host_blocks=HOST_BLOCKS,
            executor=executor,
            dp=DP,
        )

        outcome = bench.run([*crowd(), *choices_of(41)])

    assert_same(outcome, truth(), choices_said())
