"""The communicator over torch's process groups: HCCL between cards, gloo between hosts.

A process group carries out a call on a stream of its own, and lets the stream that the call was
made in wait for it: so a call returns before it is done on a card, and when it is done on a CPU.
What it cannot do: compare the ranks' calls, and hear a rank outside of calls. A rank that ends is
found by those that started it; one that hangs, by a call that does not end (`call_watch`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed
from torch import Tensor

from tandem_engine.api.errors import ConfigError
from tandem_engine.api.micro_batches import MC2_NEEDS_CARDS
from tandem_engine.parallel.arguments import (
    check_all_gather,
    check_place,
    check_reduce_scatter,
    check_tensor,
    group_of,
    name_of,
    other_rank,
)
from tandem_engine.parallel.call_watch import CallWatch
from tandem_engine.parallel.collective_record import RECORD_LENGTH, RankCalls, RecordedCall
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.silence import ENDLESS, JOIN_TIMEOUT_S, UNHEARD, Silence
from tandem_engine.parallel.world import WORLD, Group, WorldShape

_TORCH: Final[Any] = torch.distributed  # torch has no types for what is used here
_SUMMED: Final = (torch.float32, torch.bfloat16)
_MOVED: Final = (
    *_SUMMED, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
_SENDS: Final = 4
"""Calls of send in a group that a rank may be ahead of the receivers, as with shared memory."""

MakeGroup = Callable[[Any, Group, int, timedelta], Any]
"""Makes a process group of a store, the members, this rank's place among them and a time-out."""
NameGroup = Callable[[Any, int], str]
"""Names a process group for operators, by this rank's place in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Kind of process groups."""

    make_group: MakeGroup
    device: str
    """Type of the tensors' device."""
    sums_bfloat16: bool
    """True: it adds bfloat16 as it is; else the tensors are added as float32."""
    name_group: NameGroup | None = None
    """None: no operator communicates by itself."""


class ProcessGroupCommunicator:
    """One rank of a world; implements `Communicator`.

    The constructor returns when all ranks have joined.

    Args:
        backend: HCCL, or gloo.
        store: Of torch, the same for all ranks.
        shape: As all ranks declare it.
        rank: This one.
        timeout_s: The longest time that a call may take on top of what `expect` has told.
        endless_s: The same where it has told nothing, from this rank's arrival in the call: ranks
            may compute for long between two of them. None: 30 times `timeout_s`.
        join_timeout_s: The longest wait for a rank that has not joined yet.

    Raises:
        CollectiveError: A rank has not joined in time.
    """

    def __init__(
        self,
        backend: Backend,
        store: Any,
        shape: WorldShape,
        rank: int,
        *,
        timeout_s: float,
        endless_s: float | None = None,
        join_timeout_s: float = JOIN_TIMEOUT_S,
    ) -> None:
        self._backend, self._shape, self._rank = backend, shape, rank
        self._groups = shape.groups_of(rank)
        self._calls = deque[RecordedCall](maxlen=RECORD_LENGTH)
        self._numbers = dict.fromkeys(self._groups, 0)
        self._last: dict[str, Any] = {}
        # Each group has a thread of its own, which must not wait for another one's receiver.
        self._sends = {name: deque[tuple[Any, Tensor]]() for name in self._groups}
        self._cause: str | None = None
        self._is_closed = False
        self._watch = CallWatch(lambda: dict(self._last), self.abort, silence_s=timeout_s)
        endless = timedelta(seconds=endless_s or ENDLESS * timeout_s)
        try:
            # gloo's groups connect as they are made, HCCL's in the first call. Ranks meet before,
            # so that one which never comes is missed, and behind, so that none leaves too early.
            self._meet("here", store, join_timeout_s)
            self._members = self._join(store, endless)
            self._meet("joined", store, join_timeout_s)
        except RuntimeError as error:
            raise self._failed(f"A rank has not joined: {_first_line(error)}.") from error

    @property
    def rank(self) -> int:
        """This rank in the world."""
        return self._rank

    @property
    def shape(self) -> WorldShape:
        """All ranks, and their groups."""
        return self._shape

    def all_reduce(self, tensor: Tensor, group: str = WORLD) -> None:
        """See `Communicator`, as for all methods."""
        if self._is_empty(tensor, group, _SUMMED):
            return
        total = self._summand(tensor)
        self._call("all_reduce", tensor, group, lambda members: members.allreduce([total]))
        if total is not tensor:
            tensor.copy_(total)

    def reduce_scatter(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        """Put this member's piece of the sum into `out`."""
        is_empty = self._is_empty(tensor, group, _SUMMED)
        check_reduce_scatter(out, tensor, self._groups[group])
        if is_empty:
            return
        piece, whole = self._summand(out), self._summand(tensor)
        self._call(
            "reduce_scatter",
            tensor,
            group,
            lambda members: members._reduce_scatter_base(piece, whole),  # noqa: SLF001
        )
        if piece is not out:
            out.copy_(piece)

    def all_gather(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        """Put the members' tensors one behind another into `out`."""
        is_empty = self._is_empty(tensor, group, _MOVED)
        check_all_gather(out, tensor, self._groups[group])
        if is_empty:
            return
        self._call(
            "all_gather",
            tensor,
            group,
            lambda members: members._allgather_base(_bytes(out), _bytes(tensor)),  # noqa: SLF001
        )

    def broadcast(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        """Replace `tensor` by that of the member at place `source`."""
        is_empty = self._is_empty(tensor, group, _MOVED)
        check_place(source, self._groups[group])
        if is_empty:
            return
        options = _TORCH.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._call(
            f"broadcast from {source}",
            tensor,
            group,
            lambda members: members.broadcast([_bytes(tensor)], options),
        )

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> None:
        """Send a copy, and go on; with four on their way, wait for the first of them."""
        is_empty = self._is_empty(tensor, group, _MOVED)
        other_rank(target, self._groups[group], self._rank)
        if is_empty:
            return
        sends = self._sends[group]
        while len(sends) >= _SENDS:
            work, _ = sends.popleft()
            self._await(work)
        copy = _bytes(tensor).clone()
        work = self._start(
            f"send to {target}", tensor, group, lambda members: members.send([copy], target, 0)
        )
        sends.append((work, copy))

    def receive(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        """Fill `tensor` with what the member at place `source` sends."""
        is_empty = self._is_empty(tensor, group, _MOVED)
        other_rank(source, self._groups[group], self._rank)
        if is_empty:
            return
        self._call(
            f"receive from {source}",
            tensor,
            group,
            lambda members: members.recv([_bytes(tensor)], source, 0),
        )

    def handle(self, group: str) -> str:
        """As the backend has it: on a card, the name of HCCL's communicator."""
        if self._backend.name_group is None:
            raise ConfigError(MC2_NEEDS_CARDS)
        place = self._groups[group].ranks.index(self._rank)
        return self._backend.name_group(self._members[group], place)

    def check(self) -> None:
        """Raise what a call that has returned before it was done has failed of."""
        self._raise_failure()
        for work in self._last.values():
            if work.is_completed() and (error := work.exception()) is not None:
                raise self._failed(f"A collective has failed: {_first_line(error)}.")

    def expect(self, seconds: float) -> None:
        """Bound each call by this and `timeout_s`; from one rank, which ends the others' calls."""
        self._watch.expect(seconds)

    def silence_of(self, rank: int) -> Silence:  # noqa: ARG002  # as the interface has it
        """Hear no rank outside of calls."""
        return UNHEARD

    def failure(self) -> str | None:
        """The cause of which the world has failed; None: it has not."""
        return self._cause

    def abort(self, cause: str) -> None:
        """End all groups: calls that wait raise, here and, as connections close, on other ranks."""
        self._cause = self._cause or cause
        self._end_groups()

    def close(self) -> None:
        """Leave the world; what is on its way to other ranks is given up."""
        if not self._is_closed:
            self._is_closed = True
            self._end_groups()

    def _meet(self, point: str, store: Any, timeout_s: float) -> None:
        """Wait until all ranks are at a point."""
        store.set(f"{point}/{self._rank}", "")
        points = [f"{point}/{rank}" for rank in range(self._shape.size)]
        store.wait(points, timedelta(seconds=timeout_s))

    def _join(self, store: Any, timeout: timedelta) -> Mapping[str, Any]:
        return {
            name: self._backend.make_group(
                _TORCH.PrefixStore(name_in_store(group), store),
                group,
                group.ranks.index(self._rank),
                timeout,
            )
            for name, group in self._groups.items()
        }

    def _is_empty(self, tensor: Tensor, group: str, dtypes: tuple[torch.dtype, ...]) -> bool:
        """Refuse wrong arguments; return True where all members have nothing to exchange."""
        group_of(self._groups, group, self._rank)
        check_tensor(tensor, dtypes, device=self._backend.device)
        return not tensor.numel()

    def _summand(self, tensor: Tensor) -> Tensor:
        return tensor if self._backend.sums_bfloat16 else tensor.float()

    def _call(
        self, operation: str, tensor: Tensor, group: str, start: Callable[[Any], Any]
    ) -> None:
        self._await(self._start(operation, tensor, group, start))

    def _start(
        self, operation: str, tensor: Tensor, group: str, start: Callable[[Any], Any]
    ) -> Any:
        self._raise_failure()
        self._numbers[group] += 1
        size, dtype = tensor.nbytes, name_of(tensor.dtype)
        self._calls.append(RecordedCall(self._numbers[group], group, operation, size, dtype))
        try:
            self._last[group] = start(self._members[group])
        except KeyError:
            raise self._failed("This rank has left the world.") from None
        except RuntimeError as error:
            raise self._failed(f"A collective has failed: {_first_line(error)}.") from error
        return self._last[group]

    def _await(self, work: Any) -> None:
        """Let the stream wait that the call was made in; on a CPU that is the thread."""
        try:
            work.wait()
        except RuntimeError as error:
            raise self._failed(f"A collective has failed: {_first_line(error)}.") from error

    def _raise_failure(self) -> None:
        if self._cause is not None:
            raise self._failed(self._cause)

    def _failed(self, cause: str) -> CollectiveError:
        self._cause = self._cause or cause
        own = RankCalls(self._rank, tuple(self._calls))
        return CollectiveError(rank=self._rank, cause=self._cause, own=own, peer=own)

    def _end_groups(self) -> None:
        self._watch.end()
        # gloo's connections close when nothing holds the group, nor work of it; HCCL's by abort.
        members, self._members, self._last = self._members, {}, {}
        for sends in self._sends.values():
            sends.clear()
        for group in members.values():
            with suppress(RuntimeError):
                group.abort()


def name_in_store(group: Group) -> str:
    """A name that no other group of the world has."""
    return f"{group.name}/{'-'.join(map(str, group.ranks))}"


def _bytes(tensor: Tensor) -> Tensor:
    """The same memory as bytes, which every backend moves."""
    return tensor.reshape(-1).view(torch.uint8)


def _first_line(error: object) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
