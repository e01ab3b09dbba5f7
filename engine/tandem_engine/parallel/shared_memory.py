"""The communicator for ranks of one host: a copy into shared memory, and a read of it by others.

A call is done when it returns. A rank that waits spins for a moment, then sleeps until it is woken;
so there may be more ranks than cores. While it sleeps it checks ten times a second that the rank
it waits for lives.

A launcher makes the segment and hands its address to all ranks:

    segment = make_segment(shape)
    # in each rank's process, on the same host:
    communicator = SharedMemoryCommunicator(segment.address, shape, rank)

Python's signal handlers do not run inside a call: after `timeout_s` at most it returns, and at once
after `abort`, which another thread may call.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import torch
from torch import Tensor

from tandem_engine.api.errors import ConfigError
from tandem_engine.api.micro_batches import MC2_NEEDS_CARDS
from tandem_engine.device.cpu.native.library import Library
from tandem_engine.device.cpu.threads.host_cores import read_host_cores
from tandem_engine.parallel.arguments import (
    check_all_gather,
    check_place,
    check_reduce_scatter,
    check_tensor,
    group_of,
    other_rank,
)
from tandem_engine.parallel.collective_record import RankCalls
from tandem_engine.parallel.segment import SegmentAddress, SharedSegment
from tandem_engine.parallel.shared_world import (
    DTYPES,
    Declaration,
    SharedWorld,
    collective_functions,
)
from tandem_engine.parallel.silence import ENDLESS, JOIN_TIMEOUT_S, Silence
from tandem_engine.parallel.world import WORLD, WorldShape

SLOT_BYTES: Final = 256 << 10
"""Bytes that a rank hands over at once. In each group, and for each rank that it sends to, a rank
has four such slots; their memory is taken when they are written for the first time."""
SPIN_US: Final = 100
"""About twice as long as the kernel takes to wake a rank that sleeps."""

_KINDS: Final = {dtype: kind for kind, dtype in enumerate(DTYPES)}
_SUMMED: Final = {torch.float32: "f32", torch.bfloat16: "bf16"}


def make_segment(
    shape: WorldShape, *, slot_bytes: int = SLOT_BYTES, library: Library | None = None
) -> SharedSegment:
    """Make the segment of a world. Keep it open until all ranks have joined.

    Raises:
        ConfigError: There are no native kernels, or `slot_bytes` is wrong.
        SegmentError: The kernel has no memory for it.
    """
    functions = collective_functions(library)
    return SharedSegment.create(Declaration(shape, 0, slot_bytes).num_bytes(functions))


class SharedMemoryCommunicator:
    """One rank of a world on this host; implements `Communicator`.

    The constructor returns when all ranks have joined. Sums are of float32 and bfloat16; the other
    calls take float16, int8, uint8, int32, int64 and bool, too.

    Args:
        address: Of the segment that `make_segment` made for `shape`.
        shape: As all ranks declare it.
        rank: This one.
        timeout_s: The longest silence of the rank whose turn it is: time without a collective of
            it, while it computes little or is stopped.
        endless_s: The longest time without a collective of it while it computes, where `expect` has
            told no other; None: 30 times `timeout_s`.
        join_timeout_s: The same for a rank that has not joined yet.
        slot_bytes: As in `make_segment`.
        spin_us: Microseconds to wait awake; None: 100, or 0 with more ranks than CPUs that this
            process may use.
        library: The native kernels; None: the best that this CPU can run.

    Raises:
        ConfigError: There are no native kernels, or an argument is wrong.
        SegmentError: There is no such segment.
        CollectiveError: A rank has not joined in time, or declares another world.
    """

    def __init__(
        self,
        address: SegmentAddress,
        shape: WorldShape,
        rank: int,
        *,
        timeout_s: float,
        endless_s: float | None = None,
        join_timeout_s: float = JOIN_TIMEOUT_S,
        slot_bytes: int = SLOT_BYTES,
        spin_us: int | None = None,
        library: Library | None = None,
    ) -> None:
        functions = collective_functions(library)
        declaration = Declaration(shape, rank, slot_bytes)
        declaration.args.timeout_ms = _milliseconds("timeout_s", timeout_s)
        declaration.args.endless_ms = (
            ENDLESS * declaration.args.timeout_ms
            if endless_s is None
            else _milliseconds("endless_s", endless_s)
        )
        declaration.args.spin_us = _default_spin_us(shape) if spin_us is None else spin_us
        _milliseconds("join_timeout_s", join_timeout_s)
        self._rank, self._shape = rank, shape
        self._groups = shape.groups_of(rank)
        self._lanes = {name: shape.all_groups.index(group) for name, group in self._groups.items()}
        self._all_reduce = {
            dtype: (functions(f"all_reduce_{suffix}"), _KINDS[dtype])
            for dtype, suffix in _SUMMED.items()
        }
        self._reduce_scatter = {
            dtype: functions(f"reduce_scatter_{suffix}") for dtype, suffix in _SUMMED.items()
        }
        self._all_gather = functions("all_gather")
        self._broadcast = functions("broadcast")
        self._send_or_receive = functions("send")
        self._world = SharedWorld(
            address, shape, declaration, functions=functions, join_timeout_s=join_timeout_s
        )

    @property
    def rank(self) -> int:
        """This rank in the world."""
        return self._rank

    @property
    def shape(self) -> WorldShape:
        """All ranks, and their groups."""
        return self._shape

    def all_reduce(self, tensor: Tensor, group: str = WORLD) -> None:
        """Replace `tensor` by the sum of the members', added in the order of their places."""
        # Checked by look-ups that have to be made anyway: at 8 KB each microsecond counts.
        try:
            function, kind = self._all_reduce[tensor.dtype]
            lane = self._lanes[group]
        except KeyError:
            self._check(tensor, group, _SUMMED)
            raise
        if not tensor.is_contiguous() or not tensor.is_cpu:
            self._check(tensor, group, _SUMMED)
        outcome = function(self._world.handle, lane, tensor.data_ptr(), tensor.numel(), kind)
        if outcome:
            raise self._world.failed(outcome)

    def reduce_scatter(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        """Put this member's piece of the sum into `out`."""
        lane = self._check(tensor, group, _SUMMED)
        check_reduce_scatter(out, tensor, self._groups[group])
        function = self._reduce_scatter[tensor.dtype]
        self._call(
            function, lane, tensor.data_ptr(), out.data_ptr(), out.numel(), _KINDS[tensor.dtype]
        )

    def all_gather(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        """Put the members' tensors one behind another into `out`."""
        lane = self._check(tensor, group)
        check_all_gather(out, tensor, self._groups[group])
        kind = _KINDS[tensor.dtype]
        self._call(self._all_gather, lane, tensor.data_ptr(), out.data_ptr(), tensor.nbytes, kind)

    def broadcast(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        """Replace `tensor` by that of the member at place `source`."""
        lane = self._check(tensor, group)
        check_place(source, self._groups[group])
        kind = _KINDS[tensor.dtype]
        self._call(self._broadcast, lane, tensor.data_ptr(), tensor.nbytes, source, kind)

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> None:
        """Send to the member at place `target`; waits while that has four slots to read."""
        self._pass(tensor, self._rank, self._rank_at(target, group), group)

    def receive(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        """Fill `tensor` with what the member at place `source` sends."""
        self._pass(tensor, self._rank_at(source, group), self._rank, group)

    def calls(self, rank: int) -> RankCalls:
        """The last calls of any rank, oldest first; for tests, and for a log."""
        return self._world.calls(rank)

    def handle(self, group: str) -> str:  # noqa: ARG002
        """Raise ConfigError: kernels of a CPU leave communication to this."""
        raise ConfigError(MC2_NEEDS_CARDS)

    def check(self) -> None:
        """Do nothing: a call that has failed has raised."""

    def expect(self, seconds: float) -> None:
        """Let ranks compute for so much longer than `timeout_s`; 0: for `endless_s`."""
        self._world.expect(seconds)

    def silence_of(self, rank: int) -> Silence:
        """The silence of a rank that this one waits for outside of calls."""
        return _SilenceOf(self._world, rank)

    def failure(self) -> str | None:
        """The cause of which the world has failed; None: it has not. Any thread may call this."""
        return self._world.failure()

    def abort(self, cause: str) -> None:
        """Make every call of every rank raise from now on. Any thread may call this."""
        self._world.abort(self._rank, cause)

    def close(self) -> None:
        """Leave the world and unmap the segment; no other call of this rank may be under way."""
        self._world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self, tensor: Tensor, group: str, dtypes: Any = _KINDS) -> int:
        """The lane of a group that this rank is in; ValueError where an argument is wrong."""
        group_of(self._groups, group, self._rank)
        check_tensor(tensor, dtypes)
        return self._lanes[group]

    def _rank_at(self, place: int, group: str) -> int:
        return other_rank(place, group_of(self._groups, group, self._rank), self._rank)

    def _pass(self, tensor: Tensor, source: int, target: int, group: str) -> None:
        lane, kind = self._check(tensor, group), _KINDS[tensor.dtype]
        self._call(
            self._send_or_receive, source, target, tensor.data_ptr(), tensor.nbytes, lane, kind
        )

    def _call(self, function: Any, *arguments: int) -> None:
        outcome = function(self._world.handle, *arguments)
        if outcome:
            raise self._world.failed(outcome)


@dataclass(frozen=True, slots=True)
class SharedMemoryAddress:
    """Implements `rank_world.WorldAddress` on this host."""

    segment: SegmentAddress

    def join(self, shape: WorldShape, rank: int, *, timeout_s: float) -> SharedMemoryCommunicator:
        """See `WorldAddress`. All ranks have loaded their weights, and do nothing in between."""
        return SharedMemoryCommunicator(
            self.segment, shape, rank, timeout_s=timeout_s, join_timeout_s=timeout_s
        )


class SharedMemoryWorld:
    """Implements `rank_world.World` on this host.

    Raises:
        ConfigError: There are no native kernels.
        SegmentError: The kernel has no memory for it.
    """

    def __init__(self, shape: WorldShape) -> None:
        self._segment = make_segment(shape)
        self.address = SharedMemoryAddress(self._segment.address)

    def close(self) -> None:
        """Free the segment."""
        self._segment.close()


class _SilenceOf:
    """Implements `Silence`."""

    def __init__(self, world: SharedWorld, rank: int) -> None:
        self._world = world
        self._rank = rank

    def listen(self, seconds: float, *, begins: bool, has_come: Callable[[], bool]) -> None:
        self._world.listen(self._rank, seconds, begins=begins, has_come=has_come)

    def end(self) -> None:
        self._world.stop_listening()


def _milliseconds(name: str, seconds: float) -> int:
    if not 0 < seconds < 1e6:  # noqa: PLR2004 - eleven days
        raise ConfigError(f"{name} is {seconds:g}; it must be above 0 and below 1,000,000 seconds.")
    return max(1, int(seconds * 1e3))


def _default_spin_us(shape: WorldShape) -> int:
    cores = read_host_cores()
    num_cpus = min(len(cores.allowed), cores.quota or math.inf)
    return SPIN_US if num_cpus >= shape.size else 0
