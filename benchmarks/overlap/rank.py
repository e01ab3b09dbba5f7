"""One rank: a process on one core, in the namespace of its end of the link, that runs steps."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, assert_never

import numpy as np
import torch

from benchmarks.kernels.shapes import BLOCK_SIZE, Batch, make_config, make_decoder
from benchmarks.overlap.cases import (
    HEAD_DIM,
    HIDDEN,
    MLP,
    NUM_HEADS,
    NUM_PROMPTS,
    RANKS,
    VOCAB,
    Work,
)
from benchmarks.overlap.figures import Timed
from benchmarks.overlap.link import End, enter
from benchmarks.overlap.link_communicator import LinkAddress, LinkWorld
from tandem_engine.device.host_memory import HostInts
from tandem_engine.device.registry import open_device
from tandem_engine.microbatch.cut import Cut, RefusalReason
from tandem_engine.microbatch.overlap import StepOverlap
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import StepRows
from tandem_engine.model.decoder import allocate_kv_cache
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.plan import ParallelShape, plan_rank
from tandem_engine.runner.batch import NO_DRAFTS, FlatBatch
from tandem_engine.runner.stage_collectives import TP, world_shape
from tandem_engine.runner.worker import Worker

_SHAPE: Final = ParallelShape(tp=RANKS)
_TIMEOUT_S: Final = 1800.0
"""Longer than any step: a rank that is late is one that computes."""
_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank is, and how it reaches the other one."""

    rank: int
    core: int
    ends: tuple[End, End]


@dataclass(frozen=True, slots=True)
class Build:
    """Make a model of so many layers, and room for a step of so many tokens."""

    num_layers: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute a step."""

    work: Work
    cut_by: CutPrices | None
    """None: it stays whole."""


Order = Build | Compute


def main(place: RankPlace, port: int, connection: Connection) -> None:
    """Carry out orders until the pipe ends.

    Args:
        place: Of this rank.
        port: Of the store; 0 on rank 0, which starts it and reports its port.
        connection: Where the orders come from; each is answered.
    """
    enter(place.ends[place.rank].namespace)
    os.sched_setaffinity(0, {place.core})
    os.environ |= {"TANDEM_THREADS": "1", "TANDEM_PIN": "off"}
    torch.set_num_threads(1)
    with _joined(place, port, connection) as communicator:
        rank = _Rank(place.rank, communicator)
        with closing(rank), torch.inference_mode():
            while True:
                try:
                    order: Order = connection.recv()
                    connection.send(rank.carry_out(order))
                except (EOFError, BrokenPipeError):
                    return
                except CollectiveError:
                    if connection.poll():
                        return  # the pipe has ended, and the other rank with it
                    raise


@contextmanager
def _joined(place: RankPlace, port: int, connection: Connection) -> Iterator[Communicator]:
    hostnames = tuple(end.address for end in place.ends)
    with ExitStack() as stack:
        address = LinkAddress(port, hostnames)
        if place.rank == 0:
            address = stack.enter_context(closing(LinkWorld(hostnames))).address
            connection.send(address.port)
        communicator = address.join(world_shape(_SHAPE), place.rank, timeout_s=_TIMEOUT_S)
        yield stack.enter_context(closing(communicator))


class _Rank:
    """The worker of one rank."""

    def __init__(self, rank: int, communicator: Communicator) -> None:
        self._rank = rank
        self._communicator = communicator
        self._runtime = open_device("cpu")
        self._runtime.set_num_threads(1)
        self._worker: Worker | None = None
        self._measured: list[tuple[bool, StepOverlap]] = []

    def carry_out(self, order: Order) -> Timed | None:
        """Do it; return what it took."""
        match order:
            case Build(num_layers, num_tokens):
                self._build(num_layers, num_tokens)
                return None
            case Compute(work, cut_by):
                return self._compute(work, cut_by)
            case _:
                assert_never(order)

    def close(self) -> None:
        """End the worker's threads."""
        if self._worker is not None:
            self._worker.close()

    def _build(self, num_layers: int, num_tokens: int) -> None:
        self.close()
        self._worker = None  # its memory is needed
        config = make_config(
            hidden=HIDDEN,
            layers=num_layers,
            heads=NUM_HEADS,
            kv_heads=NUM_HEADS,
            head_dim=HEAD_DIM,
            mlp=MLP,
            vocab=VOCAB,
        )
        plan = plan_rank(_SHAPE, config, self._rank)
        decoder = make_decoder(config, self._runtime.kernels, plan=plan)
        cache = allocate_kv_cache(
            decoder.cache_layout(BLOCK_SIZE),
            num_blocks=num_tokens // BLOCK_SIZE + max(NUM_PROMPTS),
            device="cpu",
        )
        self._worker = Worker(decoder, cache, self._communicator, observe=self._observe)

    def _observe(
        self, _rows: StepRows | None, outcome: Cut | RefusalReason, measured: StepOverlap
    ) -> None:
        self._measured.append((isinstance(outcome, Cut), measured))

    def _compute(self, work: Work, cut_by: CutPrices | None) -> Timed:
        assert self._worker is not None, "it is built first; this is a bug"  # noqa: S101
        batch = flat_batch(work)
        self._worker.set_prices(cut_by)
        self._measured.clear()
        self._meet()
        begin = time.perf_counter()
        self._worker.compute(batch)
        wall_s = time.perf_counter() - begin
        ((was_cut, overlap),) = self._measured
        return Timed(wall_s=wall_s, overlap=overlap, is_cut=was_cut)

    def _meet(self) -> None:
        """Wait for the other rank."""
        self._communicator.all_reduce(torch.zeros(1), TP)


def flat_batch(work: Work) -> FlatBatch:
    """The step's batch; the same on every rank."""
    torch.manual_seed(_SEED)
    return FlatBatch(
        token_ids=torch.randint(0, VOCAB, (work.num_tokens,)),
        attention=Batch("", tuple((length, 0) for length in work.prompts)).layout(),
        yield_at=HostInts(np.cumsum(work.prompts) - 1, "cpu"),
        yielding=(),
        drafts=NO_DRAFTS,
    )
