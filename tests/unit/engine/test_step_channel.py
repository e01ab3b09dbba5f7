"""The channel of steps between real processes: order, back-pressure, and peers that are lost."""

import mmap
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from tandem_engine.device.cpu.native.build import HERE
from tandem_engine.runner.peer_process import PeerLost
from tandem_engine.runner.step_channel import (
    NoChannel,
    StepChannelClosed,
    StepReader,
    StepWriter,
    cache_line,
    channel_bytes,
)
from tests.descriptors import no_descriptor_left
from tests.patience import HANG_S

PEER = Path(__file__).with_name("step_channel_peer.py")
RING = 4096
BOUND_S = 0.5
"""For what is certain not to."""


class Peer:
    """A process at one end of a channel."""

    def __init__(self, fd: int, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PEER), str(fd), *map(str, arguments)],
            pass_fds=[fd],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, line: object) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def send(self, what: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(what)

    def wait(self, *, timeout_s: float) -> None:
        """Wait until it ends."""
        self._process.wait(timeout_s)

    def end(self) -> None:
        """Kill it, stopped or not."""
        self._process.kill()
        self._process.communicate()


class Channel:
    """Memory without a name, and the processes that have it."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("steps")
        self.memory = memoryview(b"")
        self.peers: list[Peer] = []
        self.resize(channel_bytes(num_readers=3, ring_bytes=RING))

    def resize(self, num_bytes: int) -> None:
        os.ftruncate(self.fd, num_bytes)
        self.memory = memoryview(mmap.mmap(self.fd, num_bytes))

    def writer(self, *ranks: int, timeout_s: float = HANG_S) -> StepWriter:
        return StepWriter(self.memory, ranks=ranks, timeout_s=timeout_s)

    def reader(self, place: int = 0, *, timeout_s: float = HANG_S) -> StepReader:
        return StepReader(self.memory, place=place, timeout_s=timeout_s)

    def peer(self, end: str, who: object, *, timeout_s: float = HANG_S) -> Peer:
        peer = Peer(self.fd, end, who, timeout_s)
        self.peers.append(peer)
        assert peer.line() == "ready"
        return peer

    def close(self) -> None:
        for peer in self.peers:
            peer.end()
        os.close(self.fd)


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel()
    yield made
    made.close()


class SilentRank:
    """A rank that is silent for too long as soon as it is listened to; a `Silence`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def listen(self, seconds: float, *, begins: bool, has_come: Callable[[], bool]) -> None:
        raise TimeoutError(f"rank {self._rank}", seconds, begins, has_come())

    def end(self) -> None:
        pass


def lines_of(messages: Sequence[bytes]) -> list[str]:
    return [f"{len(message)} {sha256(message).hexdigest()}" for message in messages]


def publish_until_lost(writer: StepWriter, size: int = 100) -> str:
    """The sentence of the error that publishing ends with."""

    def publish_all() -> None:
        for _ in range(1_000_000):
            writer.publish(bytes(size))

    with pytest.raises(PeerLost) as error:
        publish_all()
    return str(error.value)


# Order


def test_all_readers_get_all_messages_in_order(channel: Channel) -> None:
    rng = random.Random(0)
    sizes = [rng.choice([0, 1, 8, 100, 1015, 1016, 1017, 5000, 30_000]) for _ in range(300)]
    messages = [rng.randbytes(size) for size in sizes]
    writer = channel.writer(1, 2, 3)
    readers = [channel.peer("read", place) for place in range(3)]

    for message in messages:
        writer.publish(message)
    writer.close()

    for reader in readers:
        assert [reader.line() for _ in messages] == lines_of(messages)
        assert reader.line().startswith("StepChannelClosed")


def test_a_reader_that_moves_on_meanwhile_makes_no_room_for_the_others(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = channel.writer(1, 2, 3)
    writer.hear(SilentRank)
    quick, slow, _ = (channel.reader(place) for place in range(3))
    messages = [bytes([number]) * (RING // 8 - 8) for number in range(8)]  # they fill the ring
    for message in messages:
        writer.publish(message)
    position, unread = writer._readers[0].position, list(messages)
    load, loads = position.load, list[int]()

    def load_then_read() -> int:
        loads.append(load())
        # The first load is that of the check whether it lives.
        while unread and len(loads) > 1:
            assert quick.receive() == unread.pop(0)
        return loads[-1]

    monkeypatch.setattr(position, "load", load_then_read)
    with pytest.raises(TimeoutError, match="rank 2"):
        writer.publish(b"more")

    assert slow.receive() == messages[0]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 500, 1008, 1015, 1016])
def test_a_ring_wraps_around_at_any_size(channel: Channel, size: int) -> None:
    writer, reader = channel.writer(1), channel.reader()

    for number in range(3 * RING // size + 3):
        message = bytes([number % 251]) * size
        writer.publish(message)
        assert reader.receive() == message


def test_messages_wait_for_a_reader_that_comes_late(channel: Channel) -> None:
    writer = channel.writer(1)
    writer.publish(b"one")
    writer.publish(b"")
    reader = channel.reader()

    assert [reader.receive(), reader.receive()] == [b"one", b""]


def test_a_channel_that_is_closed_has_no_more_messages(channel: Channel) -> None:
    writer, reader = channel.writer(1), channel.reader()
    writer.publish(b"last")
    writer.close()
    writer.close()

    assert reader.receive() == b"last"
    with pytest.raises(StepChannelClosed):
        reader.receive()
    with pytest.raises(StepChannelClosed):
        writer.publish(b"more")


def test_closing_does_not_wait_for_a_reader_that_does_not_read(channel: Channel) -> None:
    writer = channel.writer(1)
    for _ in range(4):
        writer.publish(bytes(1000))

    writer.close()


# Peers that are lost


@pytest.mark.parametrize("size", [0, 100, 50_000])
def test_a_killed_reader_is_named(channel: Channel, size: int) -> None:
    writer = channel.writer(1, 2)
    channel.peer("read", 0)
    killed = channel.peer("read", 1)
    writer.publish(bytes(size))
    killed.send(signal.SIGKILL)

    assert "Rank 2 is dead" in publish_until_lost(writer, size)


def test_a_reader_is_no_dead_one_where_no_descriptor_is_left(channel: Channel) -> None:
    writer = channel.writer(1)
    reader = channel.peer("read", 0)
    messages = [bytes([number]) * 1000 for number in range(20)]

    with no_descriptor_left():
        for message in messages:
            writer.publish(message)

    assert [reader.line() for _ in messages] == lines_of(messages)
    reader.send(signal.SIGKILL)
    assert "Rank 1 is dead" in publish_until_lost(writer)


def test_a_stopped_reader_is_named(channel: Channel) -> None:
    writer = channel.writer(1, 2, timeout_s=BOUND_S)
    channel.peer("read", 0)
    stopped = channel.peer("read", 1)
    stopped.send(signal.SIGSTOP)

    text = publish_until_lost(writer)

    assert text.startswith("Rank 2 (process ")
    assert "has left messages unread and has been stopped (SIGSTOP) for more than 0.5 s" in text


def test_a_stopped_reader_is_noticed_while_the_ring_has_room(channel: Channel) -> None:
    channel.resize(1 << 24)
    writer = channel.writer(1, timeout_s=BOUND_S)
    channel.peer("read", 0).send(signal.SIGSTOP)

    # So few bytes that the ring is never full.
    assert "has left messages unread" in publish_until_lost(writer, 0)


def test_a_reader_that_goes_on_in_time_is_waited_for(channel: Channel) -> None:
    writer = channel.writer(1)
    reader = channel.peer("read", 0)
    reader.send(signal.SIGSTOP)
    messages = [bytes([number]) * 1000 for number in range(20)]
    for message in messages[:4]:
        writer.publish(message)
    reader.send(signal.SIGCONT)
    for message in messages[4:]:
        writer.publish(message)

    assert [reader.line() for _ in messages] == lines_of(messages)


def test_a_rank_that_never_opens_the_channel_is_named(channel: Channel) -> None:
    text = publish_until_lost(channel.writer(3, timeout_s=BOUND_S))

    assert text.startswith("Rank 3 has not opened its channel of steps within 0.5 s")


def test_a_killed_writer_is_named_once_all_is_read(channel: Channel) -> None:
    writer = channel.peer("write", "1")
    writer.tell(10)
    assert writer.line() == "done"
    writer.send(signal.SIGKILL)
    reader = channel.reader()

    assert reader.receive() == bytes(10)
    with pytest.raises(PeerLost, match="Rank 0 is dead"):
        reader.receive()


def test_a_writer_that_is_killed_within_a_message_is_named(channel: Channel) -> None:
    writer = channel.peer("write", "1,2")
    reader = channel.peer("read", 0)
    # The second rank never comes, so that the writer waits with half of the message written.
    writer.tell(100_000)
    while int.from_bytes(channel.memory[64:72], "little") < RING // 2:
        pass
    writer.send(signal.SIGKILL)

    assert reader.line().startswith("PeerLost: Rank 0 is dead")


def test_a_stopped_writer_is_named(channel: Channel) -> None:
    writer = channel.peer("write", "1")
    reader = channel.reader(timeout_s=BOUND_S)
    writer.send(signal.SIGSTOP)

    with pytest.raises(PeerLost, match=r"Rank 0 .* stopped \(SIGSTOP\) for more than 0.5 s"):
        reader.receive()


def test_an_idle_writer_is_waited_for_beyond_the_bound(channel: Channel) -> None:
    writer = channel.peer("write", "1")
    reader = channel.peer("read", 0, timeout_s=0.0)
    with pytest.raises(subprocess.TimeoutExpired):
        reader.wait(timeout_s=BOUND_S)
    writer.tell(5)

    assert reader.line() == lines_of([bytes(5)])[0]


# Memory that is none


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda memory: memory[:10], "holds no channel"),
        (lambda memory: memory[:1000], "open all of it"),
        (lambda memory: memoryview(bytearray(memory.nbytes)), "another version of Tandem"),
    ],
)
def test_memory_without_a_channel_is_refused(
    channel: Channel, spoil: Callable[[memoryview], memoryview], text: str
) -> None:
    channel.writer(1)

    with pytest.raises(NoChannel, match=text):
        StepReader(spoil(channel.memory), place=0, timeout_s=HANG_S)


def test_a_place_is_taken_once(channel: Channel) -> None:
    channel.writer(1)
    channel.reader()

    with pytest.raises(NoChannel, match=f"taken by process {os.getpid()}"):
        channel.reader()
    with pytest.raises(NoChannel, match=r"has 1 readers: 0 … 0"):
        channel.reader(1)


def test_a_frame_that_cannot_be_is_refused(channel: Channel) -> None:
    writer, reader = channel.writer(1), channel.reader()
    writer.publish(b"some")
    begin = channel_bytes(num_readers=1, ring_bytes=0)
    channel.memory[begin : begin + 4] = (1 << 30).to_bytes(4, "little")

    with pytest.raises(NoChannel, match="written by others"):
        reader.receive()


@pytest.mark.parametrize(("ranks", "size"), [((), 10_000), ((1,), 500)])
def test_a_channel_without_room_or_readers_is_refused(ranks: tuple[int, ...], size: int) -> None:
    with pytest.raises(ValueError, match="reader"):
        StepWriter(memoryview(bytearray(size)), ranks=ranks, timeout_s=HANG_S)


def test_a_cache_line_is_as_long_as_the_kernels_say_on_arm_and_elsewhere() -> None:
    header = (HERE / "cache_line.h").read_text()
    found = re.search(
        r"__aarch64__.*?kCacheLine = (\d+);.*?#else.*?kCacheLine = (\d+);", header, re.DOTALL
    )

    assert found is not None
    assert [int(size) for size in found.groups()] == [cache_line("aarch64"), cache_line("x86_64")]
    assert cache_line("aarch64") == 128
