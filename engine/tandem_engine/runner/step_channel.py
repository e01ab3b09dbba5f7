"""A channel for the messages of steps: one rank writes, the others of its group read all of them.

It lives in memory that the processes share, which the caller provides:

    header | position and process of the writer | of each reader | ring of frames
                                                                   [length|more|bytes …][…

Positions count the bytes ever written or read. The writer publishes a frame by storing its position
behind it, and waits while the slowest reader is a whole ring behind; a message that is longer than
a quarter of the ring goes in several frames.

A reader spins for a moment and then sleeps until the writer's position changes, the writer until
that of the slowest reader does. `peer_process` says how they notice that the other one is dead or
stopped. One that runs may take any time, unless it owes something and its rank is silent: a reader
owes it to read where the ring is full, and the writer owes the rest of a message, and, while it is
in a turn of its step loop, the next one.

Not thread-safe: one thread writes, and one of each reading process reads.
"""

import platform
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tandem_engine.parallel.silence import UNHEARD, Silence
from tandem_engine.runner.peer_process import PeerProcess
from tandem_engine.runner.shared_position import POSITION_BYTES, SharedPosition


def cache_line(machine: str) -> int:
    """Bytes of a line on a kind of machine, as `uname -m` names it: `kCacheLine` of cache_line.h.

    The last level of Kunpeng 920, a host of NPUs, has lines of 128 bytes.
    """
    return 128 if machine == "aarch64" else 64


CACHE_LINE: Final = cache_line(platform.machine())


MAGIC: Final = 0x54444D53_54455032
"""First eight bytes of the memory; another layout has another number."""
DEFAULT_SPIN_S: Final = 20e-6

_HEADER: Final = struct.Struct("<QII Q")  # magic, number of readers, unused, bytes of the ring
_FRAME: Final = struct.Struct("<II")  # bytes, and what follows
_LAST, _MORE, _SKIP, _END = 0, 1, 2, 3
"""The rest of a message behind its frame: none; more frames. Or: the ring goes on at its begin; the
channel is closed."""
_ALIGN: Final = 8
_MIN_RING: Final = 1 << 10

UNREAD: Final = "has left messages unread"
UNFINISHED: Final = "has not sent the rest of a message"


class NoChannel(Exception):
    """The memory holds no channel that this rank may open; the text says why."""


class StepChannelClosed(Exception):
    """The writer has closed the channel: there are no more messages."""


def channel_bytes(*, num_readers: int, ring_bytes: int) -> int:
    """Size of the memory of a channel."""
    return CACHE_LINE * (2 + num_readers) + ring_bytes


class StepWriter:
    """The writing end, on rank 0. It lays the channel out: make it before any reader.

    Args:
        memory: At least `channel_bytes`, writable, zeroed and shared with the readers.
        ranks: Ranks of the readers, in the order of their places.
        timeout_s: Longest time that a reader may be stopped while messages wait for it, or may take
            to open the channel.
        spin_s: Time to spin for a slow reader before sleeping.

    Raises:
        ValueError: The memory is too small, or there is no reader.
    """

    def __init__(
        self,
        memory: memoryview,
        *,
        ranks: Sequence[int],
        timeout_s: float,
        spin_s: float = DEFAULT_SPIN_S,
    ) -> None:
        ring_bytes = (len(memory) - channel_bytes(num_readers=len(ranks), ring_bytes=0)) & -_ALIGN
        if not ranks:
            raise ValueError("A channel of steps has at least one reader; `ranks` is empty.")
        if ring_bytes < _MIN_RING:
            least = channel_bytes(num_readers=len(ranks), ring_bytes=_MIN_RING)
            raise ValueError(
                f"The channel's memory has {len(memory)} bytes; for {len(ranks)} readers it must "
                f"have at least {least}."
            )
        self._ring = _Ring(memory, num_readers=len(ranks), num_bytes=ring_bytes)
        self._readers = [
            PeerProcess(f"Rank {rank}", self._ring.position(2 + place), timeout_s=timeout_s)
            for place, rank in enumerate(ranks)
        ]
        self._ranks = tuple(ranks)
        self._spin_s = spin_s
        self._at = 0
        # The end of what all readers are known to have read, one ring further.
        self._free_until = ring_bytes
        self._most = ring_bytes // 4 - _FRAME.size
        self._position = self._ring.position(1)
        self._position.sign()
        _HEADER.pack_into(memory, 0, MAGIC, len(ranks), 0, ring_bytes)
        self._is_closed = False

    def hear(self, silence_of: Callable[[int], Silence]) -> None:
        """Bound the waits for a reader by its rank's silence from now on."""
        for rank, reader in zip(self._ranks, self._readers, strict=True):
            reader.silence = silence_of(rank)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Owe the readers a message meanwhile; its end settles it.

        A writer that has nothing to do owes nothing.
        """
        self._ring.turn += 1
        try:
            yield
        finally:
            self._ring.turn += 1

    def publish(self, message: bytes) -> None:
        """Hand a message to all readers, without waiting for them unless the ring is full.

        Raises:
            PeerLost: A reader has died, or is stopped; the channel is of no use then.
            CollectiveError: The ring is full, and a rank has been silent for too long.
            StepChannelClosed: `close` was called before.
        """
        if self._is_closed:
            raise StepChannelClosed("The channel of steps is closed; nothing can be published.")
        for reader in self._readers:
            reader.check_progress(self._at, fault=UNREAD)
        if len(message) <= self._most:
            self._put(message, _LAST)
            return
        whole = memoryview(message)
        last = (len(message) - 1) // self._most * self._most
        for begin in range(0, last, self._most):
            self._put(whole[begin : begin + self._most], _MORE)
        self._put(whole[last:], _LAST)

    def close(self) -> None:
        """Tell the readers that no message follows; those that do not read are not told."""
        if self._is_closed:
            return
        self._is_closed = True
        _, read = self._slowest()
        if self._at + _FRAME.size <= read + self._ring.num_bytes:
            self._put(b"", _END)

    def release(self) -> None:
        """Let go of the memory, though an error of `publish` may hold this writer."""
        for position in (self._position, *(reader.position for reader in self._readers)):
            position.release()
        self._ring.release()

    def _put(self, piece: bytes | memoryview, follows: int) -> None:
        size = _FRAME.size + (len(piece) + _ALIGN - 1 & -_ALIGN)
        to_end = self._ring.to_end(self._at)
        if size > to_end:
            self._make_room(to_end)
            self._ring.put(self._at, b"", _SKIP)
            self._at += to_end
        self._make_room(size)
        self._ring.put(self._at, piece, follows)
        self._at += size
        self._position.store(self._at)

    def _make_room(self, size: int) -> None:
        while self._at + size > self._free_until:
            slowest, read = self._slowest()
            self._free_until = read + self._ring.num_bytes
            if self._at + size > self._free_until:
                # All that is in the ring has to be seen, or there will be no more room.
                self._position.store(self._at)
                slowest.await_change(read, spin_s=self._spin_s, fault=UNREAD)

    def _slowest(self) -> tuple[PeerProcess, int]:
        """The reader that has read least, and the position of which that was found.

        Loaded again, its position could be ahead of another reader's, whose messages would then be
        overwritten.
        """
        read = [reader.position.load() for reader in self._readers]
        least = min(read)
        return self._readers[read.index(least)], least


class StepReader:
    """A reading end, on a rank other than 0.

    Args:
        memory: That of the writer.
        place: Place of this rank among the writer's `ranks`.
        timeout_s: Longest time for which the writer's process may be stopped.
        spin_s: Time to spin for a message before sleeping.
        silence: That of rank 0, which bounds the time for what it owes.

    Raises:
        NoChannel: The memory holds no channel, or the place is taken.
    """

    def __init__(
        self,
        memory: memoryview,
        *,
        place: int,
        timeout_s: float,
        spin_s: float = DEFAULT_SPIN_S,
        silence: Silence = UNHEARD,
    ) -> None:
        self._ring = _opened(memory)
        if not 0 <= place < self._ring.num_readers:
            raise NoChannel(
                f"The place {place} is none of this channel, which has {self._ring.num_readers} "
                f"readers: 0 … {self._ring.num_readers - 1}."
            )
        self._position = self._ring.position(2 + place)
        if self._position.process:
            raise NoChannel(
                f"The place {place} of the channel is taken by process {self._position.process}."
            )
        self._writer = PeerProcess(
            "Rank 0", self._ring.position(1), timeout_s=timeout_s, silence=silence
        )
        self._spin_s = spin_s
        self._at = 0
        self._position.sign()

    def receive(self) -> bytes:
        """Wait for the next message, for as long as the writer lives and runs, and owes none.

        Raises:
            StepChannelClosed: There is none: the writer has closed the channel.
            PeerLost: The writer has died, or is stopped for too long.
            CollectiveError: It owes the message, and a rank has been silent for too long.
            NoChannel: The memory was written by others.
        """
        piece, follows = self._take(is_due=False)
        if follows == _LAST:
            return piece
        pieces = [piece]
        while follows == _MORE:
            piece, follows = self._take(is_due=True)
            pieces.append(piece)
        return b"".join(pieces)

    def _take(self, *, is_due: bool) -> tuple[bytes, int]:
        """Read one frame.

        Args:
            is_due: True if the writer owes it, so that silence is an error.
        """
        while True:
            if self._writer.position.load() == self._at:
                if is_due:
                    self._writer.await_change(self._at, spin_s=self._spin_s, fault=UNFINISHED)
                else:
                    self._writer.await_change(
                        self._at, spin_s=self._spin_s, fault=None, turn=self._turn
                    )
            piece, follows, size = self._ring.take(self._at)
            self._at += size
            self._position.store(self._at)
            if follows == _END:
                raise StepChannelClosed("Rank 0 has closed the channel of steps.")
            if follows != _SKIP:
                return piece, follows

    def _turn(self) -> int:
        """Number of the turn in which the writer is; 0: in none."""
        turn = self._ring.turn
        return turn if turn % 2 else 0


def _opened(memory: memoryview) -> "_Ring":
    """Return the ring in the memory of a writer."""
    if len(memory) < CACHE_LINE:
        raise NoChannel(f"The memory of {len(memory)} bytes holds no channel of steps.")
    magic, num_readers, _, ring_bytes = _HEADER.unpack_from(memory)
    if magic != MAGIC:
        raise NoChannel(
            f"The memory begins with {magic:#x} and not with {MAGIC:#x}: it is no channel of "
            f"steps, or one of another version of Tandem. All ranks must run the same one."
        )
    size = channel_bytes(num_readers=num_readers, ring_bytes=ring_bytes)
    if size > len(memory):
        raise NoChannel(
            f"The channel of steps has {size} bytes and its memory only {len(memory)}; open all "
            f"of it."
        )
    return _Ring(memory, num_readers=num_readers, num_bytes=ring_bytes)


class _Ring:
    """The memory of a channel: the positions of its processes, and the frames."""

    def __init__(self, memory: memoryview, *, num_readers: int, num_bytes: int) -> None:
        self.num_readers = num_readers
        self.num_bytes = num_bytes
        self._memory = memory
        self._begin = channel_bytes(num_readers=num_readers, ring_bytes=0)
        at = CACHE_LINE + POSITION_BYTES
        self._turn = memory[at : at + 8].cast("Q")

    def release(self) -> None:
        """Let go of the memory."""
        self._turn.release()

    @property
    def turn(self) -> int:
        """Begins and ends of the writer's turns: odd within one."""
        return self._turn[0]

    @turn.setter
    def turn(self, count: int) -> None:
        self._turn[0] = count

    def position(self, line: int) -> SharedPosition:
        """The position that stands in a line of the memory."""
        return SharedPosition(self._memory, line * CACHE_LINE)

    def to_end(self, position: int) -> int:
        """Bytes from `position` to the end of the ring."""
        return self.num_bytes - position % self.num_bytes

    def put(self, position: int, piece: bytes | memoryview, follows: int) -> None:
        """Write a frame, which is not seen yet."""
        at = self._begin + position % self.num_bytes
        _FRAME.pack_into(self._memory, at, len(piece), follows)
        at += _FRAME.size
        self._memory[at : at + len(piece)] = piece

    def take(self, position: int) -> tuple[bytes, int, int]:
        """Copy a frame out; return its content, what follows it, and its size."""
        to_end = self.to_end(position)
        at = self._begin + self.num_bytes - to_end
        length, follows = _FRAME.unpack_from(self._memory, at)
        if follows == _SKIP:
            return b"", _SKIP, to_end
        size = _FRAME.size + (length + _ALIGN - 1 & -_ALIGN)
        if size > to_end or follows > _END:
            raise NoChannel(
                f"A frame of {length} bytes at byte {position} of the channel cannot be; its "
                f"memory was written by others."
            )
        at += _FRAME.size
        return bytes(self._memory[at : at + length]), follows, size
