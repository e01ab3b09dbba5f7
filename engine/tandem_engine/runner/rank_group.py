"""The processes of a replica's ranks on this host: started, waited for and ended by rank 0."""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from types import TracebackType
from typing import Final, Self

from tandem_engine.api.errors import ConfigError
from tandem_engine.model.decoder import Decoder
from tandem_engine.parallel.segment import SharedSegment
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator, make_segment
from tandem_engine.runner.executor import RankExecutor
from tandem_engine.runner.group_executor import GroupExecutor
from tandem_engine.runner.rank_launcher import (
    ProcessLauncher,
    RankHandle,
    RankLauncher,
    RankStartError,
    RankTask,
)
from tandem_engine.runner.rank_process import (
    CacheSizes,
    GroupAddress,
    Loaded,
    RankSettings,
    Ready,
    StartFailed,
    join_world,
    prepare_executor,
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


class RankGroup:
    """Ranks 1 … n - 1 of a replica, seen from rank 0, which is this process.

        group = RankGroup(settings)          # they begin to load
        decoder = load_part(settings, runtime, 0)
        executor = group.join(decoder, sizes)
        …
        group.close()

    Args:
        settings: Of all ranks.
        launcher: Starts their processes, and is this group's from now on; None: they are children
            of this process.
        start_timeout_s: Longest time that a rank may take to load its weights.

    Raises:
        ConfigError: The shape has a single rank.
    """

    def __init__(
        self,
        settings: RankSettings,
        *,
        launcher: RankLauncher | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        _check(settings)
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._launcher = launcher or ProcessLauncher()
        self._ranks: Sequence[RankHandle] = ()
        self._communicator: SharedMemoryCommunicator | None = None
        self._local: RankExecutor | None = None
        others = range(1, settings.shape.world_size)
        self._world = make_segment(world_shape(settings.shape))
        self._channel = SharedSegment.create(
            channel_bytes(num_readers=len(others), ring_bytes=_RING_BYTES)
        )
        self._writer: StepWriter | None = StepWriter(
            self._channel.buffer, ranks=others, timeout_s=settings.timeout_s
        )
        try:
            self._ranks = self._launcher.launch([self._task(rank) for rank in others])
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> Sequence[int]:
        """Processes of the ranks from 1 on, once they have joined."""
        return [rank.pid for rank in self._ranks]

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
            rank.connect(self._start_timeout_s)
            self._await_report(rank, Loaded)
            rank.connection.send(sizes)
        make = prepare_executor(self._settings, decoder, sizes)
        for rank in self._ranks:
            self._await_report(rank, Ready)
        self._communicator = join_world(self._settings, self._world.address, 0)
        self._local = make(self._communicator)
        return GroupExecutor(
            self._local,
            publish=self.publish,
            vocab_size=decoder.config.vocab_size,
            num_stages=self._settings.shape.pp,
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
        """Sentences about the ranks that something has ended; empty: there are none."""
        wait([rank.sentinel for rank in self._ranks], _REAP_TIMEOUT_S)
        found = [(rank.rank, rank.how_killed()) for rank in self._ranks]
        return " ".join(f"Rank {number} {how}." for number, how in found if how)

    def close(self) -> None:
        """End all ranks, and free what they share. May be called again.

        No step may be under way.
        """
        with ExitStack() as stack:
            stack.callback(self._launcher.close)
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

    def _task(self, rank: int) -> RankTask:
        address = GroupAddress(
            process=os.getpid(), channel=self._channel.address, world=self._world.address
        )
        return RankTask(rank, self._settings, address)

    def _await_report(self, rank: RankHandle, kind: type[Loaded] | type[Ready]) -> None:
        if not wait([rank.connection], self._start_timeout_s):
            raise RankStartError(
                f"Rank {rank.rank} (process {rank.pid}) has not started within "
                f"{self._start_timeout_s:g} s; see its log."
            )
        try:
            report = rank.connection.recv()
        except (EOFError, ConnectionResetError):
            wait([rank.sentinel], _REAP_TIMEOUT_S)
            how = rank.how_killed() or "has ended"
            raise RankStartError(f"Rank {rank.rank} {how} while it started; see its log.") from None
        if isinstance(report, StartFailed):
            raise RankStartError(f"Rank {rank.rank} cannot start: {report.cause}.")
        if not isinstance(report, kind):
            raise RankStartError(f"Rank {rank.rank} reports {report!r}, which is a bug.")

    def _end(self) -> None:
        """Wait for a moment until the processes end, then kill them."""
        ranks, self._ranks = self._ranks, ()
        # Ranks that have joined find the channel closed; others are still loading.
        deadline = time.monotonic() + (_END_TIMEOUT_S if self._communicator else 0.0)
        with ExitStack() as stack:
            for rank in ranks:
                stack.callback(rank.close)
            for rank in ranks:
                rank.join(max(0.0, deadline - time.monotonic()))

    def _free(self) -> None:
        if self._local is not None:
            self._local.close()
        if self._communicator is not None:
            self._communicator.close()
        self._writer = None
        self._world.close()
        self._channel.close()


def _check(settings: RankSettings) -> None:
    shape = settings.shape
    shape.check()
    if shape.world_size == 1:
        raise ConfigError("A group has two ranks or more; for one, compute in its own process.")
