"""The processes of a replica's ranks on this host: started, waited for and ended by rank 0."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from multiprocessing.connection import wait
from types import TracebackType
from typing import Final, Self, TypeVar

from torch import Tensor

from tandem_engine.api.errors import ConfigError
from tandem_engine.api.micro_batch_stats import MicroBatchStats
from tandem_engine.api.timeline import RankStep
from tandem_engine.device.host_memory import has_queue
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.kvcache.capacity import StepCost
from tandem_engine.model.decoder import Decoder
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.rank_world import World, open_world
from tandem_engine.parallel.segment import SharedSegment
from tandem_engine.parallel.silence import Silence
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.group_executor import GroupExecutor, RankLost
from tandem_engine.runner.micro_batch_control import EVERY_STEP, MicroBatchControl
from tandem_engine.runner.profile import (
    ProfilePlan,
    StepMemory,
    first_layers,
    give_back,
    with_halves,
)
from tandem_engine.runner.rank_launcher import (
    REAP_TIMEOUT_S,
    ProcessLauncher,
    RankHandle,
    RankLauncher,
    RankStartError,
    RankTask,
)
from tandem_engine.runner.rank_process import (
    GroupAddress,
    Loaded,
    Profile,
    Profiled,
    RankSettings,
    Ready,
    Recorded,
    StartFailed,
    linear_all_reduce_of,
    prepare_worker,
)
from tandem_engine.runner.rank_watch import RankWatch
from tandem_engine.runner.stage_collectives import tokens_group, world_shape
from tandem_engine.runner.step_channel import StepChannelClosed, StepWriter, channel_bytes
from tandem_engine.runner.worker import Worker

START_TIMEOUT_S: Final = 600.0
"""Time for a rank to load its weights, and again for its KV cache."""
_RING_BYTES: Final = 1 << 20
_END_TIMEOUT_S: Final = 5.0
"""Time for ranks to end by themselves; a step that they compute may last longer."""

_Report = TypeVar("_Report", Loaded, Profiled, Ready)


class RankGroup:
    """Ranks 1 … n - 1 of a replica, seen from rank 0, which is this process.

        group = RankGroup(settings)          # they begin to load
        decoder = load_part(settings, runtime, 0)
        loaded = group.await_loaded()        # may be left out, as the next one
        costs = group.profile(decoder, runtime)
        executor = group.join(decoder, sizes)
        group.watch(lose)
        …
        group.close()

    Args:
        settings: Of all ranks.
        launcher: Starts their processes, and is this group's from now on; None: they are children
            of this process.
        world: Where the ranks exchange tensors, and this group's from now on; None: that of their
            device.
        start_timeout_s: Longest time that a rank may take to load its weights.

    Raises:
        ConfigError: The shape has a single rank.
    """

    def __init__(
        self,
        settings: RankSettings,
        *,
        launcher: RankLauncher | None = None,
        world: World | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        _check(settings)
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._launcher = launcher or ProcessLauncher()
        self._ranks: Sequence[RankHandle] = ()
        self._communicator: Communicator | None = None
        self._local: Worker | None = None
        self._loaded: list[Loaded] | None = None
        self._micro_batches: MicroBatchControl | None = None
        self.whole_costs: Sequence[StepCost] = ()
        """Costs of whole steps on each rank, where `profile` has measured cut ones, too."""
        self._watch: RankWatch | None = None
        self._reaping = threading.Lock()
        others = range(1, settings.shape.world_size)
        self._world = world or open_world(settings.device, world_shape(settings.shape))
        # The steps that are measured have a channel of their own, whose end is the end of those.
        self._profile_channel, self._channel = (_Channel(settings, others) for _ in range(2))
        try:
            self._ranks = self._launcher.launch([self._task(rank) for rank in others])
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> Sequence[int]:
        """Processes of the ranks from 1 on, once they have joined."""
        return [rank.pid for rank in self._ranks]

    def await_loaded(self) -> Sequence[Loaded]:
        """Wait until the other ranks have their weights; return the reports from rank 1 on.

        Raises:
            RankStartError: A rank cannot start; none is left then.
        """
        with self._or_close():
            if self._loaded is None:
                for rank in self._ranks:
                    rank.connect(self._start_timeout_s)
                self._loaded = [self._await_report(rank, Loaded) for rank in self._ranks]
            return self._loaded

    def profile(self, decoder: Decoder, runtime: DeviceRuntime) -> list[StepCost]:
        """Run a few small steps on all ranks, and tell what steps cost each of them.

        To be called once, before `join` and before any other step.

        Args:
            decoder: The part of rank 0.
            runtime: Its device.

        Returns:
            The cost by rank, from rank 0 on.

        Raises:
            RankStartError: A rank cannot start; none is left then.
            RankLost: A step has failed; no rank is left then.
            ConfigError: The model does not run, or its KV cache cannot be of that type.
        """
        with self._or_close():
            self._order(Profile())
            plan = ProfilePlan(decoder.max_positions, self._settings.block_size)
            own, ends = self._measure(plan, decoder, runtime)
            give_back(runtime)
            self._profile_channel.end()
            others = [self._await_report(rank, Profiled).memory for rank in self._ranks]
            self._profile_channel.close()
            begins = [0, *ends[:-1]]
            spans = list(zip(begins, ends, strict=True))
            measured = [
                [StepMemory.over(steps[begin:end]) for begin, end in spans] for steps in others
            ]
            return [self._cost(plan, memories) for memories in (own, *measured)]

    def _cost(self, plan: ProfilePlan, measured: Sequence[StepMemory]) -> StepCost:
        """Costs of steps on a rank; with micro-batches those in halves are behind the others."""
        whole = plan.cost(measured[: plan.num_steps])
        if not self._settings.micro_batch:
            return whole
        self.whole_costs = (*self.whole_costs, whole)
        return with_halves(whole, plan.cost(measured[plan.num_steps :]))

    def _measure(
        self, plan: ProfilePlan, decoder: Decoder, runtime: DeviceRuntime
    ) -> tuple[list[StepMemory], list[int]]:
        """Memory of each step on rank 0, and the messages published until its end."""
        layers = first_layers(
            decoder, runtime, plan, decoder.kv_dtype(self._settings.kv_cache_dtype)
        )
        channel, own, ends = self._profile_channel, [], []
        # Each dp rank computes all rows.
        fused = linear_all_reduce_of(self._settings, decoder)
        with closing(Worker(*layers, self._joined(), linear_all_reduce=fused)) as local:
            executor = self._executor(local, channel, decoder)
            for memory in plan.run(executor, runtime):
                own.append(memory)
                ends.append(channel.num_messages)
            if self._settings.micro_batch:
                # The memory of activations is kept: what halves take comes on top.
                executor.set_prices(EVERY_STEP)
                for memory in plan.run(executor, runtime):
                    own.append(memory)
                    ends.append(channel.num_messages)
        return own, ends

    def join(
        self, decoder: Decoder, sizes: CacheSizes, *, cost_of_halves: int = 0
    ) -> GroupExecutor:
        """Wait until all ranks are ready; return the executor of all of them.

        Args:
            decoder: The part of rank 0.
            sizes: Of every rank's cache.
            cost_of_halves: KV blocks that micro-batches cost, for their figures.

        Raises:
            RankStartError: A rank cannot start; none is left then.
            CollectiveError: A rank has not joined in time.
        """
        with self._or_close():
            self._order(sizes)
            communicator = self._joined()
            if self._settings.micro_batch:
                self._micro_batches = MicroBatchControl.of(decoder, num_kv_blocks=cost_of_halves)
            control = self._micro_batches
            make = prepare_worker(
                self._settings, decoder, sizes, observe=control.observe if control else None
            )
            for rank in self._ranks:
                self._await_report(rank, Ready)
            self._local = make(communicator)
            return self._executor(self._local, self._channel, decoder, control)

    def micro_batch_stats(self) -> MicroBatchStats | None:
        """Gains and costs of micro-batches; None: they are off. From any thread."""
        return None if self._micro_batches is None else self._micro_batches.stats()

    def watch(self, lose: Callable[[RankLost], None]) -> None:
        """Have `lose` called, by another thread, when a rank ends or hangs before `close`.

        A replica that computes nothing learns so that it cannot compute any more.
        """
        joined = self._joined()

        def tell() -> None:
            cause = joined.failure()
            what = " ".join(filter(None, (cause, self.exits()))) or "A rank has ended."
            lose(RankLost(f"{what} See the log of the replica."))

        sentinels = [rank.sentinel for rank in self._ranks]
        self._watch = RankWatch(sentinels, lambda: joined.failure() is not None, tell)

    def turn(self) -> AbstractContextManager[None]:
        """A turn of the step loop, in which the other ranks may expect the next step.

        One that hangs in it is found by them; without one they wait for ever.
        """
        return self._channel.turn()

    def exits(self) -> str:
        """Sentences about the ranks that something has ended; empty: there are none."""
        with self._reaping:
            wait([rank.sentinel for rank in self._ranks], REAP_TIMEOUT_S)
            exits = [(rank.rank, rank.how_killed()) for rank in self._ranks]
        return " ".join(f"Rank {number} {how}." for number, how in exits if how)

    def close(self) -> None:
        """End all ranks, and free what they share. May be called again.

        No step may be under way.
        """
        with ExitStack() as stack:
            stack.callback(self._launcher.close)
            stack.callback(self._free)
            stack.callback(self._end)
            if self._watch is not None:
                self._watch.close()
            for channel in (self._profile_channel, self._channel):
                channel.end()

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
            process=os.getpid(),
            channel=self._channel.address,
            world=self._world.address,
            profile=self._profile_channel.address,
        )
        return RankTask(rank, self._settings, address)

    @contextmanager
    def _or_close(self) -> Iterator[None]:
        """Leave no rank where the start fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _order(self, order: Profile | CacheSizes) -> None:
        self.await_loaded()
        for rank in self._ranks:
            with suppress(BrokenPipeError):  # it has ended, which is noticed at its report
                rank.connection.send(order)

    def _joined(self) -> Communicator:
        """The world; the other ranks join it at their first order."""
        if self._communicator is None:
            settings = self._settings
            self._communicator = self._world.address.join(
                world_shape(settings.shape), 0, timeout_s=settings.timeout_s
            )
            for channel in (self._profile_channel, self._channel):
                channel.hear(self._communicator.silence_of)
        return self._communicator

    def _executor(
        self,
        local: Worker,
        channel: "_Channel",
        decoder: Decoder,
        control: MicroBatchControl | None = None,
    ) -> GroupExecutor:
        return GroupExecutor(
            local,
            publish=channel.publish,
            num_stages=self._settings.shape.pp,
            abort=self._joined().abort,
            check=self._joined().check,
            expect=self._joined().expect,
            exits=self.exits,
            broadcast=self._broadcast if has_queue(decoder.device) else None,
            micro_batches=control,
            recorded=self._recorded,
        )

    def _broadcast(self, tokens: Tensor) -> None:
        """Hand tokens of rank 0 to the other ranks."""
        self._joined().broadcast(tokens, 0, tokens_group(self._settings.shape))

    def _recorded(self) -> list[RankStep]:
        """Wait for what the other ranks have recorded; one that is lost has recorded nothing."""
        steps: list[RankStep] = []
        for rank in self._ranks:
            # Closed meanwhile, or its process has ended: the group is lost, and says so elsewhere.
            with suppress(OSError, EOFError):
                if wait([rank.connection], self._settings.timeout_s):
                    report = rank.connection.recv()
                    steps += report.steps if isinstance(report, Recorded) else ()
        return steps

    def _await_report(self, rank: RankHandle, kind: type[_Report]) -> _Report:
        if not wait([rank.connection], self._start_timeout_s):
            raise RankStartError(
                f"Rank {rank.rank} (process {rank.pid}) has not started within "
                f"{self._start_timeout_s:g} s; see its log."
            )
        try:
            report = rank.connection.recv()
        except (EOFError, ConnectionResetError):
            wait([rank.sentinel], REAP_TIMEOUT_S)
            how = rank.how_killed() or "has ended"
            raise RankStartError(f"Rank {rank.rank} {how} while it started; see its log.") from None
        if isinstance(report, StartFailed):
            raise RankStartError(f"Rank {rank.rank} cannot start: {report.cause}.")
        if not isinstance(report, kind):
            raise RankStartError(f"Rank {rank.rank} reports {report!r}, which is a bug.")
        return report

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
        self._world.close()
        self._profile_channel.close()
        self._channel.close()


class _Channel:
    """The writing end of a channel of steps, in memory of its own."""

    def __init__(self, settings: RankSettings, others: Sequence[int]) -> None:
        num_bytes = channel_bytes(num_readers=len(others), ring_bytes=_RING_BYTES)
        self._segment = SharedSegment.create(num_bytes)
        self.address = self._segment.address
        self._writer: StepWriter | None = StepWriter(
            self._segment.buffer, ranks=others, timeout_s=settings.timeout_s
        )
        self.num_messages = 0

    def hear(self, silence_of: Callable[[int], Silence]) -> None:
        """Bound the waits for a rank by its silence."""
        if self._writer is not None:
            self._writer.hear(silence_of)

    def turn(self) -> AbstractContextManager[None]:
        """See `StepWriter.turn`."""
        return nullcontext() if self._writer is None else self._writer.turn()

    def publish(self, message: bytes) -> None:
        """Hand a message to all other ranks.

        Raises:
            PeerLost: One of them is dead, or does not read.
            StepChannelClosed: The group is closed.
        """
        if self._writer is None:
            raise StepChannelClosed("The group of ranks is closed; start another one.")
        self._writer.publish(message)
        self.num_messages += 1

    def end(self) -> None:
        """Tell the ranks that no message follows."""
        if self._writer is not None:
            self._writer.close()

    def close(self) -> None:
        """Free its memory."""
        if self._writer is not None:
            self._writer.release()
        self._writer = None
        self._segment.close()


def _check(settings: RankSettings) -> None:
    shape = settings.shape
    shape.check()
    if shape.world_size == 1:
        raise ConfigError("A group has two ranks or more; for one, compute in its own process.")
