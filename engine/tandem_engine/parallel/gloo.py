"""The communicator for ranks of several hosts: gloo over TCP.

A launcher starts a store and hands its address to all ranks:

    store = start_store("10.0.0.5")
    # in each rank's process, on any host that reaches it:
    communicator = GlooCommunicator(("10.0.0.5", store.port), shape, rank, hostname="10.0.0.6")

Calls are carried out by gloo's threads: a result is there when the event has been waited for.
bfloat16 is summed as float32, which doubles the bytes of such a sum, but not of other calls.

gloo itself compares no calls: it ends the process where sizes differ, and waits where operations
do. So ranks compare each call before they make it, which costs a second exchange;
`checks_calls=False` saves that where the order of calls is known to be right. Ranks leave their
records in the store when they fail. An abort reaches the peers when this rank's own call has ended,
or after their timeout.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from types import TracebackType
from typing import Final, Self, TypeVar

import torch
from torch import Tensor

from tandem_engine.api.errors import ConfigError
from tandem_engine.parallel.arguments import (
    check_all_gather,
    check_place,
    check_reduce_scatter,
    check_tensor,
    group_of,
    name_of,
    other_rank,
)
from tandem_engine.parallel.collective_record import (
    CollectiveRecord,
    RankCalls,
    RecordedCall,
    compare,
    first_mismatch,
)
from tandem_engine.parallel.communicator import CollectiveEvent
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.gloo_process_group import (
    GlooEvent,
    ProcessGroup,
    Store,
    Work,
    all_gather,
    broadcast,
    connect,
    open_store,
    reduce_scatter,
)
from tandem_engine.parallel.world import WORLD, Group, WorldShape

TIMEOUT_S: Final = 30.0
JOIN_TIMEOUT_S: Final = 120.0
_REPORT_S: Final = 1.0
"""Time in which the ranks that are alive notice closed connections, and leave their records."""
_Result = TypeVar("_Result")
_SUMMED: Final = (torch.float32, torch.bfloat16)
_DTYPES: Final = (*_SUMMED, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64)
_POLL_S: Final = 0.01
_FAILED: Final = "failed"
_REASONS: Final = {
    "Timed out waiting": "A rank was silent for longer than {timeout_s:g} s.",
    "Connection closed": "A rank closed its connection.",
    "Connection reset": "A rank closed its connection.",
    "pair closure": "A rank was silent for longer than {timeout_s:g} s.",
}
"""Words of gloo → their meaning."""


class GlooCommunicator:
    """One rank of a world on several hosts; implements `Communicator`.

    The constructor returns when all ranks have joined. Sums are of float32 and bfloat16; the other
    calls take float16, int8, uint8, int32 and int64, too.

    Args:
        store: Host and port of the world's store.
        shape: As all ranks declare it.
        rank: This one.
        hostname: Name or address of this host, by which the other ranks reach it.
        timeout_s: The longest silence of a rank that this one waits for.
        join_timeout_s: The same for a rank that has not joined yet.
        checks_calls: Compare each call with the other members' before it is made. Without it gloo
            ends the process where sizes differ.

    Raises:
        ConfigError: An argument is wrong.
        CollectiveError: A rank has not joined in time, or declares another world.
    """

    def __init__(
        self,
        store: tuple[str, int],
        shape: WorldShape,
        rank: int,
        *,
        hostname: str,
        timeout_s: float = TIMEOUT_S,
        join_timeout_s: float = JOIN_TIMEOUT_S,
        checks_calls: bool = True,
    ) -> None:
        if not 0 <= rank < shape.size:
            raise ConfigError(f"Rank {rank} is not of this world; ranks are 0 to {shape.size - 1}.")
        if min(timeout_s, join_timeout_s) <= 0:
            raise ConfigError(
                f"timeout_s and join_timeout_s are {timeout_s:g} and {join_timeout_s:g}; both must "
                "be above 0 seconds."
            )
        self._rank, self._shape = rank, shape
        self._groups = shape.groups_of(rank)
        self._record = CollectiveRecord()
        self._failure: CollectiveError | None = None
        self._is_closed = False
        self._checks_calls, self._timeout_s = checks_calls, timeout_s
        self._process_groups: dict[str, ProcessGroup] = {}
        self._store: Store | None = None
        self._hostnames: list[str] = []
        try:
            self._join(store, hostname, timeout_s, join_timeout_s)
        except RuntimeError as error:
            self._process_groups.clear()
            reason = _short(str(error), join_timeout_s)
            cause = f"The ranks have not all joined in {join_timeout_s:g} s: {reason}"
            raise _error_at_join(rank, cause) from error

    @property
    def rank(self) -> int:
        """This rank in the world."""
        return self._rank

    @property
    def shape(self) -> WorldShape:
        """All ranks, and their groups."""
        return self._shape

    def all_reduce(self, tensor: Tensor, group: str = WORLD) -> CollectiveEvent:
        """Replace `tensor` by the sum of the members', in an order that gloo chooses."""
        self._check(tensor, group, _SUMMED)
        total = _widened(tensor)
        return self._call(
            group,
            "all_reduce",
            tensor,
            lambda one: one.allreduce([total]),
            results=(tensor, total),
        )

    def reduce_scatter(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> CollectiveEvent:
        """Put this member's piece of the sum into `out`."""
        check_reduce_scatter(out, tensor, self._check(tensor, group, _SUMMED))
        whole, piece = _widened(tensor), _widened(out)
        return self._call(
            group,
            "reduce_scatter",
            tensor,
            lambda one: reduce_scatter(one, piece, whole),
            results=(out, piece),
        )

    def all_gather(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> CollectiveEvent:
        """Put the members' tensors one behind another into `out`."""
        check_all_gather(out, tensor, self._check(tensor, group))
        return self._call(
            group,
            "all_gather",
            tensor,
            lambda one: all_gather(one, out, tensor),
        )

    def broadcast(self, tensor: Tensor, source: int, group: str = WORLD) -> CollectiveEvent:
        """Replace `tensor` by that of the member at place `source`."""
        check_place(source, self._check(tensor, group))
        return self._call(
            group,
            f"broadcast from place {source}",
            tensor,
            lambda one: broadcast(one, tensor, source),
        )

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> CollectiveEvent:
        """Send to the member at place `target`; the event is done when the tensor is free."""
        other = self._other(target, group)
        self._check(tensor, group)
        return self._pass(
            tensor, (self._rank, other), group, lambda one, sent: one.send([sent], target, 0)
        )

    def receive(self, tensor: Tensor, source: int, group: str = WORLD) -> CollectiveEvent:
        """Fill `tensor` with what the member at place `source` sends."""
        other = self._other(source, group)
        self._check(tensor, group)
        return self._pass(
            tensor, (other, self._rank), group, lambda one, filled: one.recv([filled], source, 0)
        )

    def calls(self, rank: int) -> RankCalls:
        """The last calls of this rank; of another one those that it left when it failed."""
        if rank == self._rank:
            return RankCalls(rank, self._record.calls)
        with suppress(RuntimeError):
            if self._store and self._store.check([_record_key(rank)]):
                found = json.loads(self._store.get(_record_key(rank)))
                return RankCalls(rank, tuple(RecordedCall(*call) for call in found))
        return RankCalls(rank, (), is_known=False)

    def abort(self, cause: str) -> None:
        """Make every call of this rank raise, and those of others when they notice it."""
        with suppress(RuntimeError):
            self._tell(self._rank, cause)
        self._failed(self._rank, cause)

    def close(self) -> None:
        """Leave the world: connections are closed. May be called again."""
        self._is_closed = True
        self._process_groups.clear()
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _join(
        self, address: tuple[str, int], hostname: str, timeout_s: float, join_timeout_s: float
    ) -> None:
        self._store = store = open_store(address, join_timeout_s)
        digest = hashlib.sha256(f"{self._shape}{self._checks_calls}".encode()).hexdigest()
        store.set(f"joined/{self._rank}", json.dumps([digest, hostname]))
        for rank in range(self._shape.size):
            declared, at = json.loads(store.get(f"joined/{rank}"))
            self._hostnames.append(at)
            if declared != digest:
                raise _error_at_join(
                    rank,
                    f"Rank {rank} declares another world than rank {self._rank}; start all ranks "
                    "of a replica with the same plan.",
                )
        for name, group in self._groups.items():
            self._process_groups[name] = connect(
                store,
                f"{name}/{'-'.join(map(str, group.ranks))}",
                group.ranks,
                self._rank,
                hostname=hostname,
                timeout_s=timeout_s,
                join_timeout_s=join_timeout_s,
            )

    def _check(
        self, tensor: Tensor, group: str, dtypes: tuple[torch.dtype, ...] = _DTYPES
    ) -> Group:
        found = group_of(self._groups, group, self._rank)
        check_tensor(tensor, dtypes)
        return found

    def _other(self, place: int, group: str) -> int:
        return other_rank(place, group_of(self._groups, group, self._rank), self._rank)

    def _call(
        self,
        group: str,
        operation: str,
        tensor: Tensor,
        start: Callable[[ProcessGroup], Work],
        *,
        results: tuple[Tensor, Tensor] | None = None,
    ) -> CollectiveEvent:
        call = self._recorded(group, operation, tensor)
        if self._checks_calls:
            self._carry_out(lambda: self._compare(group, call))
        # No frame that an error keeps alive may hold a process group: its connections are to close.
        work = self._carry_out(lambda: start(self._process_groups[group]))
        return GlooEvent(work, self._carry_out, results)

    def _pass(
        self,
        tensor: Tensor,
        pair: tuple[int, int],
        group: str,
        start: Callable[[ProcessGroup, Tensor], Work],
    ) -> CollectiveEvent:
        source, target = pair
        call = self._recorded(f"{source}→{target}", f"send in {group}", tensor)
        if self._checks_calls:
            self._carry_out(lambda: self._compare_pair(source, group, call, start))
        work = self._carry_out(lambda: start(self._process_groups[group], tensor))
        return GlooEvent(work, self._carry_out, None)

    def _recorded(self, group: str, operation: str, tensor: Tensor) -> RecordedCall:
        if self._is_closed:
            raise ValueError("The communicator is closed; make no call after close().")
        if self._failure is not None:
            raise copy(self._failure)
        return self._record.add(group, operation, tensor.nbytes, name_of(tensor.dtype))

    def _compare(self, group: str, call: RecordedCall) -> None:
        ranks = self._groups[group].ranks
        own, found = _signature(call), torch.empty(len(ranks), dtype=torch.int64)
        all_gather(self._process_groups[group], found, own).wait()
        for rank, signature in zip(ranks, found.tolist(), strict=True):
            if signature != own.item():
                raise _Mismatch(rank)

    def _compare_pair(
        self,
        source: int,
        group: str,
        call: RecordedCall,
        start: Callable[[ProcessGroup, Tensor], Work],
    ) -> None:
        own = _signature(call)
        passed = own.clone()
        start(self._process_groups[group], passed).wait()
        if passed.item() != own.item():
            raise _Mismatch(source)

    def _carry_out(self, work: Callable[[], _Result]) -> _Result:
        culprit, reason = None, ""
        try:
            return work()
        except _Mismatch as mismatch:
            culprit = mismatch.rank
        except RuntimeError as error:
            reason = str(error)
        # Raised here, the error does not hold the frames of the other one, and process groups.
        raise self._failed(culprit, reason)

    def _failed(self, culprit: int | None, reason: str) -> CollectiveError:
        """Leave the world with this rank's record in the store, and find out why it failed."""
        if self._failure is None:
            self._process_groups.clear()
            self._failure = self._found(culprit, reason)
        return copy(self._failure)

    def _found(self, culprit: int | None, reason: str) -> CollectiveError:
        own = RankCalls(self._rank, self._record.calls)
        others = [rank for rank in range(self._shape.size) if rank != self._rank]
        told = None
        # Without the store, which ends with its host, this rank's own view is all that there is.
        with suppress(RuntimeError):
            self._required_store.set(_record_key(self._rank), json.dumps(own.calls))
            missing = self._await_reports(others)
            if culprit is None:
                culprit = next(iter(missing), None) or self._odd_one(own, others)
            told = self._tell(culprit, self._cause(culprit, own, reason))
        rank, cause = told or (others[0] if others else self._rank, self._short(reason))
        return CollectiveError(rank=rank, cause=cause, own=own, peer=self.calls(rank))

    def _await_reports(self, others: Sequence[int]) -> list[int]:
        """The ranks that have left no record in time: they have ended, or hang."""
        end = time.monotonic() + _REPORT_S
        missing = list(others)
        while missing and time.monotonic() < end and not self._required_store.check([_FAILED]):
            missing = [one for one in missing if not self._required_store.check([_record_key(one)])]
            time.sleep(_POLL_S)
        return missing

    def _odd_one(self, own: RankCalls, others: Sequence[int]) -> int:
        """The first rank whose calls do not match this one's."""
        calls = {rank: self.calls(rank).calls for rank in others}
        odd = (rank for rank in others if first_mismatch(own.calls, calls[rank]))
        return next(odd, others[0] if others else self._rank)

    def _cause(self, culprit: int, own: RankCalls, reason: str) -> str:
        peer = self.calls(culprit)
        if first_mismatch(own.calls, peer.calls):
            return compare(own, peer)
        if not peer.is_known:
            return (
                f"Rank {culprit} ({self._hostnames[culprit]}) has ended, hangs, or cannot be "
                f"reached from rank {self._rank} ({self._hostnames[self._rank]}): "
                f"{self._short(reason)}"
            )
        return self._short(reason)

    def _short(self, reason: str) -> str:
        return _short(reason, self._timeout_s)

    def _tell(self, culprit: int, cause: str) -> tuple[int, str]:
        """Tell all ranks, unless another one was first; the rank and cause that stay."""
        told = self._required_store.compare_set(_FAILED, "", json.dumps([culprit, cause]))
        rank, text = json.loads(told)
        return int(rank), str(text)

    @property
    def _required_store(self) -> Store:
        if self._store is None:
            raise RuntimeError("the store is closed")
        return self._store


class _Mismatch(Exception):
    """A member of the group makes another call."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


def _widened(tensor: Tensor) -> Tensor:
    """The tensor that gloo sums: float32."""
    return tensor.float()


def _signature(call: RecordedCall) -> Tensor:
    """What members compare: 63 bits of a call."""
    digest = hashlib.sha256(repr(tuple(call)).encode()).digest()
    return torch.tensor([int.from_bytes(digest[:8]) >> 1])


def _record_key(rank: int) -> str:
    return f"record/{rank}"


def _short(reason: str, timeout_s: float) -> str:
    """What gloo says, without the place in its source."""
    for known, sentence in _REASONS.items():
        if known in reason:
            return sentence.format(timeout_s=timeout_s)
    return reason.partition("] ")[2][:200] or reason[:200] or "a call of the ranks failed."


def _error_at_join(rank: int, cause: str) -> CollectiveError:
    nothing = RankCalls(rank, ())
    return CollectiveError(rank=rank, cause=cause, own=nothing, peer=nothing)
