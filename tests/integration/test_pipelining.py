"""Steps in flight on two pipeline stages: their order, their overlap, and large tensors."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.host_memory import HostInts
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.batch import NO_DRAFTS, FlatBatch
from tandem_engine.runner.group_executor import GroupExecutor
from tandem_engine.runner.pending_logits import PendingLogits
from tandem_engine.runner.rank_group import RankGroup
from tests.integration.bench import (
    BLOCK_SIZE,
    HOST_BLOCKS,
    SCARCE,
    SCHEDULES,
    Bench,
    choices_of,
    choices_said,
    crowd,
    mixed,
    truth,
)
from tests.integration.test_ranks import assert_same, ranks_of

Group = tuple[RankGroup, GroupExecutor]


@pytest.fixture(scope="module")
def stages() -> Iterator[Group]:
    """Two stages of a rank each; one engine after another uses them."""
    with ranks_of(ParallelShape(pp=2)) as group:
        yield group


class Watched:
    """An executor that notes which steps begin, and which have come out of the last stage.

    Attributes:
        open: Numbers of the steps that have begun and have no logits yet, of those that have any.
        ended: Those that have their logits, as they came.
        most_open: Steps that were open at once, at most.
        early: Rows that began before their last token was known: (step, sequence, position).
        begun: Called when the first stage of a step is computed, with its number.
    """

    def __init__(self, executor: GroupExecutor, prompts: dict[str, int]) -> None:
        self._executor = executor
        self._known = Counter(prompts)
        self.num_begun = 0
        self.open: list[int] = []
        self.ended: list[int] = []
        self.most_open = 0
        self.early: list[tuple[int, str, int]] = []
        self.begun: Callable[[int], None] = lambda _: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def begin(self, batch: FlatBatch) -> PendingLogits:
        number = self.num_begun
        for sequence_id, end in zip(
            batch.sequence_ids, batch.attention.context_lens.tolist(), strict=True
        ):
            if end > self._known[sequence_id]:
                self.early.append((number, sequence_id, end))
        self.num_begun += 1
        if batch.yielding:
            self.open.append(number)
        self.most_open = max(self.most_open, len(self.open))
        pending = self._executor.begin(batch)
        self.begun(number)
        return _WatchedLogits(self, pending, number, [row.sequence_id for row in batch.yielding])

    def end(self, number: int, yielding: list[str]) -> None:
        if yielding:
            self.open.remove(number)
            self.ended.append(number)
        self._known.update(yielding)


class _WatchedLogits:
    def __init__(
        self, watched: Watched, pending: PendingLogits, number: int, yielding: list[str]
    ) -> None:
        self._watched, self._pending = watched, pending
        self._number, self._yielding = number, yielding

    def then(self, go_on: Callable[[], None]) -> None:
        self._pending.then(go_on)

    def result(self) -> Tensor:
        logits = self._pending.result()
        self._watched.end(self._number, self._yielding)
        return logits


def watch(executor: GroupExecutor) -> Any:
    prompts = {one.request_id: len(one.prompt_token_ids) for one in crowd()}
    return Watched(executor, prompts)


@pytest.mark.parametrize("name", ["continuous", "chunked, 48 tokens", "splitfuse, 48 tokens"])
def test_a_decode_begins_when_the_token_before_it_is_known(stages: Group, name: str) -> None:
    executor = watch(stages[1])

    outcome = Bench(SCHEDULES[name], executor=executor).run(crowd(), apart=2)

    assert_same(outcome, truth())
    assert outcome.stats.num_hit_tokens > 0
    assert executor.early == []
    assert executor.open == []
    assert executor.ended == sorted(executor.ended)
    assert executor.most_open == 2


def test_preempted_sequences_and_choices_say_the_same_on_two_stages(stages: Group) -> None:
    bench = Bench(
        mixed(48, max_preempt_count=2),
        num_blocks=SCARCE,
        num_host_blocks=HOST_BLOCKS,
        executor=stages[1],
    )

    outcome = bench.run([*crowd(), *choices_of(41)])

    assert_same(outcome, truth(), choices_said())
    assert outcome.stats.num_swaps > 0


def test_a_stage_begins_a_step_while_the_next_stage_has_the_one_before(stages: Group) -> None:
    group, plain = stages
    executor = watch(plain)
    (pid,) = group.pids

    both: list[int] = []

    def stop_first(number: int) -> None:
        # The second stage can do nothing until the first has computed another step.
        if number == 0:
            os.kill(pid, signal.SIGSTOP)
        elif number == 1:
            both.extend(executor.open)
            os.kill(pid, signal.SIGCONT)

    executor.begun = stop_first
    try:
        outcome = Bench(SCHEDULES["continuous, small prefills"], executor=executor).run(crowd())
    finally:
        os.kill(pid, signal.SIGCONT)

    assert both == [0, 1]
    assert_same(outcome, truth())


def test_stages_with_much_for_each_other_do_not_wait_for_ever(stages: Group) -> None:
    """Hidden states and logits of these steps are more than the slots between two ranks hold."""
    num_rows = 1500
    one_each = torch.arange(num_rows)
    batch = FlatBatch(
        token_ids=one_each % 256,
        attention=build_attention_metadata(
            query_lens=[1] * num_rows,
            context_lens=[1] * num_rows,
            block_tables=[[0]] * num_rows,
            block_size=BLOCK_SIZE,
            device=torch.device("cpu"),
        ),
        yield_at=HostInts.of(range(num_rows), "cpu"),
        yielding=(),
        drafts=NO_DRAFTS,
        sequence_ids=[f"row {at}" for at in range(num_rows)],
        block_tables=[[0]] * num_rows,
    )
    executor = stages[1]

    with torch.inference_mode():
        pending = [executor.begin(batch) for _ in range(3)]
        first, *others = [each.result() for each in pending]
    executor.remove(batch.sequence_ids)

    assert first.nbytes > 1 << 20
    assert all(torch.equal(first, other) for other in others)
