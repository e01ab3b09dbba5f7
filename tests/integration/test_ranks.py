"""Ranks in processes of their own give the tokens of one: tandem-tiny, greedy and drawn."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.registry import open_device
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.group_executor import GroupExecutor, RankLost
from tandem_engine.runner.pending_logits import PendingLogits
from tandem_engine.runner.rank_group import RankGroup
from tandem_engine.runner.rank_launcher import RankStartError
from tandem_engine.runner.rank_process import RankSettings, load_part
from tests.integration.bench import (
    BLOCK_SIZE,
    HOST_BLOCKS,
    MAX_SEQ_LEN,
    ROOMY,
    SCARCE,
    SCHEDULES,
    Bench,
    Outcome,
    all_free,
    choices_of,
    choices_said,
    crowd,
    mixed,
    said_without_logprobs,
    standard,
    truth,
    with_async_scheduling,
    without_logprobs,
)
from tests.tiny import TINY
from tests.unit.engine.native import native_kernels

SIZES: Final = CacheSizes(num_blocks=ROOMY, num_host_blocks=HOST_BLOCKS)


def settings_of(shape: ParallelShape, **values: Any) -> RankSettings:
    native_kernels()
    usual = {
        "model_path": str(TINY),
        "dtype": "float32",
        "max_positions": MAX_SEQ_LEN,
        "timeout_s": 30.0,
    }
    return RankSettings(shape=shape, block_size=BLOCK_SIZE, **{**usual, **values})


@contextmanager
def ranks_of(
    shape: ParallelShape, *, sizes: CacheSizes = SIZES, **values: Any
) -> Iterator[tuple[RankGroup, GroupExecutor]]:
    settings = settings_of(shape, **values)
    with RankGroup(settings) as group:
        decoder = load_part(settings, open_device("cpu"), 0)
        yield group, group.join(decoder, sizes)


@pytest.fixture(scope="module")
def pair() -> Iterator[GroupExecutor]:
    """Two ranks that share layers; one engine after another uses them."""
    with ranks_of(ParallelShape(tp=2)) as (_, executor):
        yield executor


def assert_same(outcome: Outcome, *expected: Outcome) -> None:
    for each in expected:
        for name, tokens in each.tokens.items():
            if name in outcome.tokens:
                assert outcome.tokens[name] == tokens, name
                assert outcome.logprobs[name] == pytest.approx(each.logprobs[name], abs=1e-3), name
    assert outcome.tokens.keys() <= {name for each in expected for name in each.tokens}
    assert all_free(outcome.stats)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", ["continuous", "splitfuse, 48 tokens"])
def test_two_ranks_of_tp_give_the_tokens_of_one(
    pair: GroupExecutor, name: str, *, is_async: bool
) -> None:
    schedule = SCHEDULES[name]
    if is_async:
        schedule = with_async_scheduling(schedule)

    outcome = Bench(schedule, executor=pair).run(crowd(), apart=2)

    assert_same(outcome, truth())
    assert outcome.stats.num_hit_tokens > 0


def top_logits_of(executor: GroupExecutor, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Logits of each share that the next steps are sampled from → number of such steps."""
    counts: Counter[int] = Counter()
    begin = executor.begin

    def counted(batch: FlatBatch) -> PendingLogits:
        counts[batch.num_top] += bool(batch.yielding)
        return begin(batch)

    monkeypatch.setattr(executor, "begin", counted)
    return counts


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_top_logits_of_two_ranks_give_the_tokens_of_one(
    pair: GroupExecutor, monkeypatch: pytest.MonkeyPatch, *, is_async: bool
) -> None:
    counts = top_logits_of(pair, monkeypatch)
    schedule = with_async_scheduling(mixed(48)) if is_async else mixed(48)
    requests = without_logprobs([*crowd(), *choices_of(41)])

    assert_same(Bench(schedule, executor=pair).run(requests, apart=2), said_without_logprobs())

    assert {1, 20} <= counts.keys()


@pytest.mark.parametrize("swaps", [0, 8], ids=["recompute", "swap"])
def test_preempted_sequences_and_choices_say_the_same_on_two_ranks(
    pair: GroupExecutor, swaps: int
) -> None:
    bench = Bench(
        mixed(48, max_preempt_count=swaps),
        num_blocks=SCARCE,
        num_host_blocks=HOST_BLOCKS * bool(swaps),
        executor=pair,
    )

    outcome = bench.run([*crowd(), *choices_of(41)])

    assert_same(outcome, truth(), choices_said())
    assert outcome.stats.num_preemptions > 0
    assert (outcome.stats.num_swaps > 0) == bool(swaps)


@pytest.mark.parametrize(
    "shape",
    [
        # Starting ranks takes most time; test_pipelining.py has two stages.
        pytest.param(ParallelShape(pp=4), marks=pytest.mark.slow),
        ParallelShape(tp=2, sp=True),
        pytest.param(ParallelShape(tp=2, pp=2, sp=True), marks=pytest.mark.slow),
    ],
    ids=["pp4", "tp2-sp", "tp2-pp2-sp"],
)
def test_stages_and_shared_rows_give_the_tokens_of_one_rank(
    shape: ParallelShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prompts have steps of their own where sp is to share their rows.
    schedule = standard("continuous") if shape.sp else mixed(48)
    with ranks_of(shape) as (_, executor):
        bench = Bench(
            schedule.model_copy(update={"max_preempt_count": 2}),
            num_blocks=SCARCE,
            num_host_blocks=HOST_BLOCKS,
            executor=executor,
        )

        outcome = bench.run([*crowd(), *choices_of(41)])

        counts = top_logits_of(executor, monkeypatch)
        of_top_logits = Bench(schedule, executor=executor).run(without_logprobs(crowd()), apart=2)

    assert_same(outcome, truth(), choices_said())
    assert outcome.stats.num_swaps > 0
    assert_same(of_top_logits, said_without_logprobs())
    assert counts[20] > 0


def step_until_lost(bench: Bench) -> str:
    """The reason that the engine ends with, once a rank is gone."""
    try:
        for _ in range(100):
            bench.engine.step(lambda: 0.0)
    except RankLost as error:
        return str(error)
    raise AssertionError("no rank is lost")


def test_a_killed_rank_is_named_and_none_is_left() -> None:
    with ranks_of(ParallelShape(tp=2)) as (group, executor):
        (pid,) = group.pids
        bench = Bench(mixed(48), executor=executor)
        for one in crowd():
            bench.engine.add(one)
        bench.engine.step(lambda: 0.0)
        compute = executor._local.compute

        def killing(batch: Any) -> Any:
            os.kill(pid, signal.SIGKILL)
            return compute(batch)

        executor._local.compute = killing  # type: ignore[method-assign]

        reason = step_until_lost(bench)

        assert "Rank 1" in reason
        assert "SIGKILL" in reason
        with pytest.raises(RankLost, match="Rank 1"):
            executor.begin(None)  # type: ignore[arg-type]
        bench.engine.close()
    assert not Path(f"/proc/{pid}").exists()
    assert group.pids == []


def test_a_rank_that_cannot_load_ends_the_start(tmp_path: Path) -> None:
    group = RankGroup(settings_of(ParallelShape(tp=2), model_path=str(tmp_path)))
    decoder = load_part(settings_of(ParallelShape(tp=2)), open_device("cpu"), 0)

    with pytest.raises(RankStartError, match="Rank 1 cannot start: CheckpointError"):
        group.join(decoder, SIZES)

    assert group.pids == []


def test_a_group_has_several_ranks() -> None:
    with pytest.raises(ConfigError):
        RankGroup(settings_of(ParallelShape()))
