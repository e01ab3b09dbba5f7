"""The processes of a replica's ranks on this host: started, waited for and ended by rank 0."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Final, Self

from tandem_engine.api.errors import ConfigError, EngineError
from tandem_engine.model.decoder import Decoder
from tandem_engine.parallel.segment import SharedSegment
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator, make_segment
from tandem_engine.runner.group_executor import GroupExecutor
from tandem_engine.runner.rank_process import (
    CacheSizes,
    GroupAddress,
    Loaded,
    RankSettings,
    Ready,
    StartFailed,
    join_world,
    prepare_executor,
    run_rank,
)
from tandem_engine.runner.stage_collectives import world_shape
from tandem_engine.runner.step_channel import StepChannelClosed, StepWriter, channel_bytes

START_TIMEOUT_S: Final = 600.0
"""Time for a rank to load its weights, and again for its KV cache."""
_RING_BYTES: Final = 1 << 20
_END_TIMEOUT_S: Final = 5.0
"""Time for ranks to end by themselves; a step that they compute may last longer."""
_REAP_TIMEOUT_S: Final = 1.0
"""Time between what others notice of the end of a process, and its exit status."""


class RankStartError(EngineError):
    """A rank cannot start; the text names it and the cause."""


@dataclass(frozen=True, slots=True)
class _Rank:
    number: int
    process: BaseProcess
    connection: Connection


class RankGroup:
    """Ranks 1 … n - 1 of a replica, seen from rank 0, which is this process.

        group = RankGroup(settings)          # they begin to load
        decoder = load_part(settings, runtime, 0)
        executor = group.join(decoder, sizes)
        …
        group.close()

    Args:
        settings: Of all ranks.
        start_timeout_s: Longest time that a rank may take to load its weights.

    Raises:
        ConfigError: The shape has a single rank, or pp, dp or sp.
    """

    def __init__(self, settings: RankSettings, *, start_timeout_s: float = START_TIMEOUT_S) -> None:
        _check(settings)
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._ranks: list[_Rank] = []
        self._communicator: SharedMemoryCommunicator | None = None
        others = range(1, settings.shape.world_size)
        # The kernel ends a rank with the thread that started it; this one lasts until `close`.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="ranks")
        self._world = make_segment(world_shape(settings.shape))
        self._channel = SharedSegment.create(
            channel_bytes(num_readers=len(others), ring_bytes=_RING_BYTES)
        )
        self._writer: StepWriter | None = StepWriter(
            self._channel.buffer, ranks=others, timeout_s=settings.timeout_s
        )
        try:
            self._ranks += [self._starter.submit(self._start, rank).result() for rank in others]
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> Sequence[int]:
        """Processes of the ranks from 1 on."""
        return [rank.process.pid or 0 for rank in self._ranks]

    def join(self, decoder: Decoder, sizes: CacheSizes) -> GroupExecutor:
        """Wait until all ranks are ready; return the executor of all of them.

        Args:
            decoder: The part of rank 0.
            sizes: Of every rank's cache.

        Raises:
            RankStartError: A rank cannot start; none is left then.
            CollectiveError: A rank has not joined in time.
        """
        try:
            return self._join(decoder, sizes)
        except BaseException:
            self.close()
            raise

    def _join(self, decoder: Decoder, sizes: CacheSizes) -> GroupExecutor:
        for rank in self._ranks:
            self._await_report(rank, Loaded)
            rank.connection.send(sizes)
        make = prepare_executor(self._settings, decoder, sizes)
        for rank in self._ranks:
            self._await_report(rank, Ready)
        self._communicator = join_world(self._settings, self._world.address, 0)
        return GroupExecutor(
            make(self._communicator),
            publish=self.publish,
            vocab_size=decoder.config.vocab_size,
            abort=self._communicator.abort,
            exits=self.exits,
        )

    def publish(self, message: bytes) -> None:
        """Hand a message to all other ranks.

        Raises:
            PeerLost: One of them is dead, or does not read.
            StepChannelClosed: The group is closed.
        """
        if self._writer is None:
            raise StepChannelClosed("The group of ranks is closed; start another one.")
        self._writer.publish(message)

    def exits(self) -> str:
        """Sentences about the ranks that a signal has ended; empty: there are none."""
        wait([rank.process.sentinel for rank in self._ranks], _REAP_TIMEOUT_S)
        found = [(rank.number, rank.process.exitcode or 0) for rank in self._ranks]
        return " ".join(
            f"Rank {number} was ended by {signal.Signals(-code).name}."
            for number, code in found
            if code < 0
        )

    def close(self) -> None:
        """End all ranks, and free what they share. May be called again.

        No step may be under way.
        """
        with ExitStack() as stack:
            stack.callback(self._starter.shutdown)
            stack.callback(self._free)
            stack.callback(self._end)
            if self._writer is not None:
                self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, rank: int) -> _Rank:
        context = multiprocessing.get_context("spawn")
        address = GroupAddress(
            process=os.getpid(), channel=self._channel.address, world=self._world.address
        )
        own, other = context.Pipe()
        process = context.Process(
            target=run_rank,
            args=(other, self._settings, address, rank),
            name=f"rank {rank}",
            daemon=True,
        )
        process.start()
        # So that the end of the process is the end of the pipe.
        other.close()
        return _Rank(rank, process, own)

    def _await_report(self, rank: _Rank, kind: type[Loaded] | type[Ready]) -> None:
        if not wait([rank.connection], self._start_timeout_s):
            raise RankStartError(
                f"Rank {rank.number} (process {rank.process.pid}) has not started within "
                f"{self._start_timeout_s:g} s; see its log."
            )
        try:
            report = rank.connection.recv()
        except (EOFError, ConnectionResetError):
            rank.process.join(_REAP_TIMEOUT_S)
            raise RankStartError(
                f"Rank {rank.number} has ended while it started, with exit code "
                f"{rank.process.exitcode}; see its log."
            ) from None
        if isinstance(report, StartFailed):
            raise RankStartError(f"Rank {rank.number} cannot start: {report.cause}.")
        if not isinstance(report, kind):
            raise RankStartError(f"Rank {rank.number} reports {report!r}, which is a bug.")

    def _end(self) -> None:
        """Wait for a moment until the processes end, then kill them."""
        for rank in self._ranks:
            rank.connection.close()
        has_joined = self._communicator is not None
        for rank in self._ranks:
            if has_joined:
                rank.process.join(_END_TIMEOUT_S)
            rank.process.kill()
            rank.process.join()
            rank.process.close()
        self._ranks.clear()

    def _free(self) -> None:
        if self._communicator is not None:
            self._communicator.close()
        self._writer = None
        self._world.close()
        self._channel.close()


def _check(settings: RankSettings) -> None:
    shape = settings.shape
    shape.check()
    if shape.tp < shape.world_size or shape.sp:
        raise ConfigError(
            f"A group of ranks shares layers alone, not pp {shape.pp}, dp {shape.dp} or sp "
            f"{str(shape.sp).lower()}; set pp and dp to 1, and sp to false."
        )
    if shape.world_size == 1:
        raise ConfigError("A group has two ranks or more; for one, compute in its own process.")
