"""Reading a replica's own metrics: what any server may answer within the bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tandem_operator.autoscaler import replicas
from tandem_operator.autoscaler.cross_check import CrossCheck
from tandem_operator.autoscaler.memory import Memory
from tandem_operator.autoscaler.replicas import ReplicaPod
from tandem_operator.autoscaler.signals import PodSample, Signals
from tandem_operator.bounded_get import Limits
from tandem_operator.scaling_law.history import History

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
LINE = b'tandem_request_received_total{model_name="tiny"} 42.0\n'
POD = ReplicaPod(name="a", uid="u", ip="127.0.0.1", created_at=0.0, ready_at=1.0, has_node=True)


@asynccontextmanager
async def replica(answer: bytes, *, hangs: bool = False) -> AsyncIterator[str]:
    """Answer each connection with these bytes."""

    ended = asyncio.Event()
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if hangs:
                await ended.wait()
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"http://{{ip}}:{server.sockets[0].getsockname()[1]}/metrics"
    finally:
        ended.set()
        await asyncio.gather(*serving)
        server.close()
        await asyncio.sleep(0)


async def result(address: str) -> str:
    counted: list[str] = []
    memory = Memory(uid="x", history=History(), decisions=[])
    sample = PodSample(received=40.0, scraped_at=0.0)
    await CrossCheck(address, counted.append).check(Signals(pods={"a": sample}), [POD], memory)
    (one,) = counted
    return one


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (HEAD + LINE, "agrees"),
        (HEAD + LINE.replace(b"42", b"39"), "disagreeing"),
        (HEAD, "unreadable"),
        (b"", "unreadable"),
        (LINE, "unreadable"),
        (HEAD.replace(b"200 OK", b"500 Internal Server Error") + LINE, "unreadable"),
        (HEAD.replace(b"200 OK", b"302 Found") + LINE, "unreadable"),
        (HEAD + b"x" * 2**21 + b"\n" + LINE, "unreadable"),
        (b"\xff" * 1000, "unreadable"),
    ],
)
async def test_any_answer_is_read_or_proves_nothing(answer: bytes, expected: str) -> None:
    async with replica(answer) as address:
        assert await result(address) == expected


async def test_a_replica_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_LIMITS", Limits(max_bytes=1000, timeout_s=0.1))
    async with replica(HEAD, hangs=True) as address:
        assert await result(address) == "unreadable"


async def test_a_closed_port_proves_nothing() -> None:
    assert await result("http://{ip}:9/metrics") == "unreadable"


async def test_replicas_that_cannot_be_read_are_read_less_and_less_often() -> None:
    """Each attempt waits for the time limit, and steps of other services wait for this one's."""
    counted: list[str] = []
    memory = Memory(uid="x", history=History(), decisions=[])
    signals = Signals(pods={"a": PodSample(received=40.0, scraped_at=0.0)})
    closed = CrossCheck("http://{ip}:9/metrics", counted.append)

    async def periods(check: CrossCheck, number: int) -> int:
        before = len(counted)
        for _ in range(number):
            await check.check(signals, [POD], memory)
        return len(counted) - before

    assert await periods(closed, 2 + 4 + 8) == 3
    assert await periods(closed, 160) == 10
    assert await periods(closed, 1) == 1
    async with replica(HEAD + LINE) as address:
        readable = CrossCheck(address, counted.append)
        assert await periods(readable, 15) == 0
        assert await periods(readable, 3) == 3, "each period again"
    assert counted[-3:] == ["agrees"] * 3
