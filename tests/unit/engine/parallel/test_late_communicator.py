"""Ranks whose communicator queues its calls, as those of devices do, give the same logits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor

from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.host_memory import HostInts
from tandem_engine.device.stream_layouts import StreamsBy
from tandem_engine.device.streams import StreamLayout
from tandem_engine.model.decoder import allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.parallel.world import WORLD
from tandem_engine.runner.batch import NO_DRAFTS, FlatBatch
from tandem_engine.runner.dp_batches import DPBatches
from tandem_engine.runner.dp_exchange import DPExchange
from tandem_engine.runner.group_executor import GroupExecutor, RankLost
from tandem_engine.runner.micro_batch_control import EVERY_STEP
from tandem_engine.runner.stage_collectives import TP, world_shape
from tandem_engine.runner.worker import Worker
from tests.unit.engine.parallel.late_accelerator import LateAccelerator, LateCommunicator
from tests.unit.engine.parallel.rank_processes import ranks_of
from tests.unit.engine.parallel.ranks import BLOCK_SIZE, layout
from tests.unit.engine.parallel.watched_communicator import WatchedCommunicator

Make = Callable[..., Path]
NUM_BLOCKS: Final = 24
SHAPES: Final = (
    ParallelShape(tp=2),
    *(
        # Three or four processes each.
        pytest.param(shape, marks=pytest.mark.slow)
        for shape in (
            ParallelShape(pp=3),
            ParallelShape(tp=2, pp=2, sp=True),
            ParallelShape(tp=2, dp=2),
            ParallelShape(dp=2, pp=2),
        )
    ),
)
PROMPTS: Final = (21, 9, 12, 7)


def name_of(shape: ParallelShape) -> str:
    return f"tp{shape.tp}-pp{shape.pp}-dp{shape.dp}{'-sp' if shape.sp else ''}"


def blocks_of(row: int, dp: int) -> range:
    """Six blocks of a row; rows are shared out among the dp ranks."""
    first = (row % dp) * NUM_BLOCKS + (row // dp) * 6
    return range(first, first + 6)


def steps_of(dp: int) -> Iterator[FlatBatch]:
    """Prompts of four rows, then tokens of theirs, which are given."""
    tokens = [(7 * at + 3 * row) % 250 for row, count in enumerate(PROMPTS) for at in range(count)]
    rows = [(count, 0, blocks_of(row, dp)) for row, count in enumerate(PROMPTS)]
    yield _batch(tokens, rows)
    for number in range(2):
        rows = [(1, count + number, blocks_of(row, dp)) for row, count in enumerate(PROMPTS)]
        yield _batch([11 + 5 * row + number for row in range(len(PROMPTS))], rows)


def _batch(tokens: Sequence[int], rows: Sequence[tuple[int, int, range]]) -> FlatBatch:
    return FlatBatch(
        token_ids=torch.tensor(tokens),
        attention=layout(rows),
        yield_at=HostInts(np.cumsum([new for new, _, _ in rows]) - 1, "cpu"),
        yielding=(),
        drafts=NO_DRAFTS,
    )


class Rank:
    """A rank's decoder, which several executors compute."""

    def __init__(self, communicator: Communicator, folder: str, shape: ParallelShape) -> None:
        self.shape, self.communicator = shape, communicator
        self.decoder = load_decoder(
            Path(folder),
            runtime=CpuRuntime(memory_bytes=1 << 30, kernels="reference"),
            max_positions=256,
            shape=shape,
            rank=communicator.rank,
        )

    def worker(self, communicator: Communicator, streams: StreamLayout | None = None) -> Worker:
        """Return one that has an empty cache."""
        decoder = self.decoder
        cache = allocate_kv_cache(
            decoder.cache_layout(BLOCK_SIZE, None), num_blocks=NUM_BLOCKS, device="cpu"
        )
        return Worker(
            decoder, cache, communicator, streams=streams, dp=self._exchange(communicator)
        )

    def _exchange(self, communicator: Communicator) -> DPExchange | None:
        shape, decoder = self.shape, self.decoder
        if shape.dp == 1:
            return None
        batches = DPBatches(dp=shape.dp, dp_rank=decoder.plan.dp_rank, num_blocks=NUM_BLOCKS)
        vocab_size = decoder.config.vocab_size
        return DPExchange(batches, communicator, decoder.plan, vocab_size=vocab_size)

    def logits(
        self, worker: Worker, *, is_cut: bool = False, num_steps: int | None = None
    ) -> list[Tensor]:
        """Begin all steps, then ask for the logits of each; on ranks but 0 there are none."""
        worker.set_prices(EVERY_STEP if is_cut else None)
        with closing(worker), torch.inference_mode():
            begun = [worker.compute(batch) for batch in islice(steps_of(self.shape.dp), num_steps)]
            return [one.result() for one in begun]


def faults_of(communicator: Communicator, folder: str, shape: ParallelShape) -> list[str]:
    """Compute with calls that are queued, beside calls that are done at once."""
    rank = Rank(communicator, folder, shape)
    faults = []
    for is_cut in (False, True):
        at_once = WatchedCommunicator(communicator)
        expected = rank.logits(rank.worker(at_once), is_cut=is_cut)
        # On a host the collectives of halves are made by a thread of their own.
        faults += at_once.faults(taking_turns=(TP,))
        for by in StreamsBy:
            device = LateAccelerator()
            late = LateCommunicator(communicator, device)
            watched = WatchedCommunicator(late)
            with device.default:
                found = rank.logits(rank.worker(watched, device.streams(by)), is_cut=is_cut)
                device.default.synchronize()
            watched.check()
            faults += watched.faults()
            if not all(map(torch.equal, found, expected)):
                faults.append(f"streams by {by}, {'halves' if is_cut else 'whole'}: other logits")
    return faults


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_calls_that_are_queued_give_the_same_logits_and_no_group_has_two_threads_or_ways(
    make_checkpoint: Make, shape: ParallelShape
) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", num_hidden_layers=3)

    world = world_shape(shape)
    with ranks_of(world, faults_of, str(folder), shape, timeout_s=60) as ranks:
        assert [rank.result() for rank in ranks] == [[]] * shape.world_size


class GivesUp(LateCommunicator):
    """Aborts where logits are to be sent: their receiver has no later call to learn of it from."""

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> None:
        self.abort(f"Rank 1 has no {tensor.nbytes} B for place {target} of {group}.")


def computes_until_lost(communicator: Communicator, folder: str, shape: ParallelShape) -> str:
    """Rank 1 gives up at the end of a step; rank 0 returns the text of its error."""
    device = LateAccelerator()
    rank = Rank(communicator, folder, shape)
    if communicator.rank == 1:
        late: LateCommunicator = GivesUp(communicator, device)
        with device.default:
            rank.logits(rank.worker(late, device.streams(StreamsBy.KIND)), num_steps=1)
            device.default.synchronize()
        return ""
    late = LateCommunicator(communicator, device)
    with device.default:
        local = rank.worker(late, device.streams(StreamsBy.KIND))
        group = _group_of(local, late)
        with closing(local), torch.inference_mode(), pytest.raises(RankLost) as raised:
            read(group, device, next(steps_of(shape.dp)))
    return str(raised.value)


def read(group: GroupExecutor, device: LateAccelerator, batch: FlatBatch) -> None:
    """Compute a step, and wait for its end as who reads its tokens does."""
    group.begin(batch).result()
    with group.reading():
        device.default.synchronize()


def _group_of(local: Worker, communicator: Communicator) -> GroupExecutor:
    return GroupExecutor(
        local,
        publish=_forget,
        abort=communicator.abort,
        check=communicator.check,
        expect=communicator.expect,
        exits=str,
        broadcast=_forget,
    )


def _forget(_: Any) -> None:
    """The other ranks need no message."""


@pytest.mark.parametrize(
    "shape",
    [pytest.param(ParallelShape(tp=2), marks=pytest.mark.slow), ParallelShape(pp=2)],
    ids=name_of,
)
def test_a_fault_that_comes_late_ends_the_step(make_checkpoint: Make, shape: ParallelShape) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", num_hidden_layers=3)

    with ranks_of(
        world_shape(shape), computes_until_lost, str(folder), shape, timeout_s=60
    ) as ranks:
        cause, _ = [rank.result() for rank in ranks]

    assert cause.startswith("Rank 1 has no ")
