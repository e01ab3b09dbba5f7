"""One rank's place in a world in shared memory: joining, leaving, faults, records of calls."""

import ctypes
import hashlib
import math
import os
import re
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final

import torch

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.native.collectives import (
    CAUSE_BYTES,
    CollectiveFunctions,
    RankHeader,
    RecordedCallArgs,
    WorldArgs,
)
from tandem_engine.device.cpu.native.library import Library, load_library
from tandem_engine.parallel.arguments import name_of
from tandem_engine.parallel.collective_record import (
    RECORD_LENGTH,
    RankCalls,
    RecordedCall,
    compare,
)
from tandem_engine.parallel.errors import CollectiveError, SegmentError
from tandem_engine.parallel.segment import SegmentAddress, SharedSegment
from tandem_engine.parallel.world import WorldShape

OPERATIONS: Final = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "send")
"""`Operation` of collectives.h."""
DTYPES: Final = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
)
"""Of tensors; the members of a group compare their place here."""
_MAX_GROUPS: Final = 256
_MIN_SLOT_BYTES: Final = 4096
_MAX_SLOT_BYTES: Final = 16 << 20


class _Fault(IntEnum):
    """`Fault` of collective_peers.h."""

    MISMATCH = 1
    SILENT = 2
    ENDED = 3
    LEFT = 4
    FAILED = 5
    CLOSED = 6
    TAKEN = 7
    ENDLESS = 8


class Declaration:
    """A world as native code reads it.

    Raises:
        ConfigError: `rank` is not of the shape, or `slot_bytes` is wrong.
    """

    def __init__(self, shape: WorldShape, rank: int, slot_bytes: int) -> None:
        if not 0 <= rank < shape.size:
            raise ConfigError(f"Rank {rank} is not of this world; ranks are 0 to {shape.size - 1}.")
        if slot_bytes & (slot_bytes - 1) or not _MIN_SLOT_BYTES <= slot_bytes <= _MAX_SLOT_BYTES:
            raise ConfigError(
                f"slot_bytes is {slot_bytes}; it can be a power of 2 from {_MIN_SLOT_BYTES} to "
                f"{_MAX_SLOT_BYTES}."
            )
        groups = [group.ranks for group in shape.all_groups]
        if len(groups) > _MAX_GROUPS:
            raise ConfigError(
                f"A world has {len(groups)} groups, with that of all ranks; it can have "
                f"{_MAX_GROUPS}."
            )
        flat = [rank for ranks in groups for rank in ranks]
        self._sizes = (ctypes.c_int64 * len(groups))(*map(len, groups))
        self._ranks = (ctypes.c_int64 * len(flat))(*flat)
        self._text = f"{shape} {slot_bytes} {RECORD_LENGTH}"
        self.args = WorldArgs(
            rank=rank,
            size=shape.size,
            num_groups=len(groups),
            group_sizes=ctypes.addressof(self._sizes),
            group_ranks=ctypes.addressof(self._ranks),
            slot_bytes=slot_bytes,
        )

    @property
    def digest(self) -> int:
        """Of everything that all ranks must declare alike."""
        return int.from_bytes(hashlib.sha256(self._text.encode()).digest()[:8])

    def num_bytes(self, functions: CollectiveFunctions) -> int:
        """Bytes of the segment."""
        return int(functions("world_bytes")(ctypes.byref(self.args)))


def collective_functions(library: Library | None) -> CollectiveFunctions:
    """The functions of `library`; None: of the best that this CPU can run.

    Raises:
        ConfigError: There is none.
    """
    native = library or load_library()
    if native is None:
        raise ConfigError(
            "There are no native kernels, without which ranks cannot share memory: install g++ 11 "
            "or newer and run `python -m tandem_engine.device.cpu.native.build`."
        )
    return native.collectives


class SharedWorld:
    """The segment as one rank has it; the constructor returns when all ranks have joined.

    Raises:
        SegmentError: There is no such segment.
        CollectiveError: A rank has not joined in time, or declares another world.
    """

    def __init__(
        self,
        address: SegmentAddress,
        shape: WorldShape,
        declaration: Declaration,
        *,
        functions: CollectiveFunctions,
        join_timeout_s: float,
    ) -> None:
        self._functions = functions
        self._shape = shape
        self._args = declaration.args
        self._rank: int = self._args.rank
        self._segment = _attached(address, declaration.num_bytes(functions))
        self.handle: int | None = functions("world_open")(
            self._segment.pointer, ctypes.byref(self._args)
        )
        """For native calls; None: it has been closed, which they notice."""
        self._join(declaration.digest, join_timeout_s)

    def abort(self, culprit: int, cause: str) -> None:
        """Let the world fail, unless it has; every later call of every rank tells this cause."""
        text = cause.encode()[:CAUSE_BYTES]
        if self.handle is not None:
            self._functions("world_abort")(self.handle, culprit, text, len(text))

    def expect(self, seconds: float) -> None:
        """Let a rank compute for so much longer than it may be silent; 0: that is not known."""
        if self.handle is not None:
            self._functions("world_expect")(self.handle, math.ceil(seconds * 1e3))

    def listen(
        self, rank: int, seconds: float, *, begins: bool, has_come: Callable[[], bool]
    ) -> None:
        """Add a time of waiting for a rank to its silence; see `Silence.listen`."""
        if self.handle is None:
            raise self.failed(_Fault.CLOSED)
        outcome = self._functions("world_listen")(self.handle, rank, int(seconds * 1e3), begins)
        if outcome and not has_come():
            raise self.failed(outcome)

    def stop_listening(self) -> None:
        """Wait for no rank any more."""
        if self.handle is not None:
            self._functions("world_stop_listening")(self.handle)

    def failure(self) -> str | None:
        """The cause of which the world has failed; None: it has not, or is closed."""
        finder = -1 if self.handle is None else self._functions("world_failed")(self.handle)
        return None if finder < 0 else self._header(finder).cause_text

    def close(self, *, has_joined: bool = True) -> None:
        """Leave the world and unmap the segment. May be called again."""
        handle, self.handle = self.handle, None
        if handle is None:
            return
        self._functions("world_close")(handle, has_joined)
        self._segment.close()

    def failed(self, outcome: int) -> CollectiveError | ValueError:
        """The error of a native call that returned `outcome`, told to all other ranks, too."""
        fault, culprit = _Fault(outcome & 255), outcome >> 8
        if fault is _Fault.CLOSED:
            return ValueError("The communicator is closed; make no call after close().")
        if fault is not _Fault.FAILED:
            self.abort(culprit, self._cause(fault, culprit))
        # Another rank may have been first: then all tell its cause.
        header = self._header(self._functions("world_failed")(self.handle))
        return CollectiveError(
            rank=header.culprit,
            cause=header.cause_text,
            own=self.calls(self._rank),
            peer=self.calls(header.culprit),
        )

    def calls(self, rank: int) -> RankCalls:
        """The last calls of a rank of the world, of a dead one, too."""
        records = (RecordedCallArgs * self._functions("world_max_records")(self.handle))()
        count = self._functions("world_records")(self.handle, rank, records)
        calls = sorted(records[:count], key=lambda record: record.order)
        return RankCalls(rank, tuple(map(self._recorded, calls)))

    def _join(self, digest: int, timeout_s: float) -> None:
        outcome = self._functions("world_join")(
            self.handle, os.getpid(), digest, int(timeout_s * 1e3)
        )
        if not outcome:
            return
        fault, culprit = _Fault(outcome & 255), outcome >> 8
        has_joined = fault is not _Fault.TAKEN
        cause = self._cause_at_join(fault, culprit, timeout_s)
        if has_joined:
            self.abort(culprit, cause)
        self.close(has_joined=has_joined)
        nothing = RankCalls(culprit, ())
        raise CollectiveError(rank=culprit, cause=cause, own=nothing, peer=nothing)

    def _cause_at_join(self, fault: _Fault, culprit: int, timeout_s: float) -> str:
        match fault:
            case _Fault.TAKEN:
                return f"Rank {culprit} has joined before; start each rank once a segment."
            case _Fault.MISMATCH:
                return (
                    f"Rank {culprit} declares another world than rank {self._rank}; start all "
                    "ranks of a replica with the same plan."
                )
            case _Fault.SILENT:
                return f"Rank {culprit} has not joined for {timeout_s:g} s."
            case _Fault.FAILED:
                return self._header(culprit).cause_text
            case _:
                return self._cause(fault, culprit)

    def _cause(self, fault: _Fault, culprit: int) -> str:
        process = f"Rank {culprit} (process {self._header(culprit).pid})"
        match fault:
            case _Fault.ENDED:
                return f"{process} has ended."
            case _Fault.LEFT:
                return f"{process} has closed its communicator."
            case _Fault.SILENT:
                stopped = _stopped(self._header(culprit).pid)
                return f"{process} has been silent for {self._args.timeout_ms / 1e3:g} s{stopped}."
            case _Fault.ENDLESS:
                seconds = self._functions("world_longest_work")(self.handle) / 1e3
                return f"{process} has computed for {seconds:g} s without an end."
            case _:
                return compare(self.calls(self._rank), self.calls(culprit))

    def _header(self, rank: int) -> RankHeader:
        header: RankHeader = self._functions("world_rank")(self.handle, rank).contents
        return header

    def _recorded(self, record: RecordedCallArgs) -> RecordedCall:
        groups = self._shape.all_groups
        operation = OPERATIONS[record.operation]
        if record.lane < len(groups):
            group = groups[record.lane].name
            operation += f" from place {record.root}" if operation == "broadcast" else ""
        else:
            source, target = divmod(record.lane - len(groups), self._shape.size)
            group = f"{source}→{target}"
            operation += f" in {groups[record.root].name}"
        dtype = name_of(DTYPES[record.type])
        return RecordedCall(record.number, group, operation, record.bytes, dtype)


def _attached(address: SegmentAddress, num_bytes: int) -> SharedSegment:
    if address.size != num_bytes:
        raise SegmentError(
            f"The segment has {address.size} B, and this world needs {num_bytes} B; make it with "
            "the same shape and slot_bytes."
        )
    return SharedSegment.attach(address)


def _stopped(pid: int) -> str:
    """Say so where a process is stopped by a signal or a debugger."""
    try:
        state = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
    return ", and is stopped" if re.search(r"^State:\s+[Tt]", state, re.MULTILINE) else ""
