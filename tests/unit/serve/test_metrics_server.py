"""The port for Prometheus, over real TCP: its answer, and callers that mean it no good."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from tandem_engine.api.errors import ConfigError
from tandem_serve.metrics_server import MetricsLimits, MetricsServer, metrics_port
from tests.patience import HANG_S, until
from tests.ports import free_port

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TEXT = b"# HELP a Text.\n# TYPE a counter\na_total 1.0\n"


@asynccontextmanager
async def served(
    exposition: Callable[[], bytes] = lambda: TEXT,
    limits: MetricsLimits | None = None,
    port: int | None = None,
) -> AsyncIterator[int]:
    port = port or free_port()
    server = MetricsServer(exposition, port, limits=limits)
    server.start()
    await server.bound()
    try:
        yield port
    finally:
        await server.stop()


async def scrape(port: int, path: str = "/metrics", host: str = "127.0.0.1") -> httpx.Response:
    # No client with TLS, which takes long to set up.
    transport = httpx.AsyncHTTPTransport(verify=NO_TLS)
    async with httpx.AsyncClient(transport=transport, timeout=HANG_S) as client:
        return await client.get(f"http://{host}:{port}{path}")


async def send(port: int, request: bytes) -> bytes:
    """Everything that the server answers until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await asyncio.wait_for(reader.read(), timeout=HANG_S)
    finally:
        writer.close()


async def test_it_shows_the_metrics_and_closes() -> None:
    async with served() as port:
        response = await scrape(port)

    assert response.status_code == 200
    assert response.content == TEXT
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert response.headers["connection"] == "close"


async def test_it_answers_on_both_families_of_addresses() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("This machine has no IPv6.")
    async with served() as port:
        assert (await scrape(port, host="[::1]")).content == TEXT


async def test_a_query_is_ignored() -> None:
    async with served() as port:
        assert (await scrape(port, "/metrics?name[]=a")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/", "/v1/models", "/debug/steps"])
async def test_no_other_path_is_there(path: str) -> None:
    async with served() as port:
        assert (await scrape(port, path)).status_code == 404


@pytest.mark.parametrize("method", ["POST", "HEAD", "DELETE", "OPTIONS"])
async def test_no_other_method_is_answered(method: str) -> None:
    async with served() as port:
        answer = await send(port, f"{method} /metrics HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"\r\nAllow: GET\r\n" in answer


@pytest.mark.parametrize(
    "request_",
    [b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"GET  /metrics HTTP/1.1\r\n\r\n",
     b"GET /metrics HTTP/2.0\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n"],
)  # fmt: skip
async def test_what_is_no_request_is_refused(request_: bytes) -> None:
    async with served() as port:
        assert (await send(port, request_)).startswith(b"HTTP/1.1 400 ")
        assert (await scrape(port)).status_code == 200


@pytest.mark.parametrize("ends", [b"", b"\r\n\r\n"])
async def test_a_head_that_is_too_large_is_refused(ends: bytes) -> None:
    head = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 8192 + ends
    async with served() as port:
        with suppress(ConnectionResetError):
            assert (await send(port, head)).startswith(b"HTTP/1.1 431 ")
        assert (await scrape(port)).status_code == 200


async def test_an_exposition_that_fails_is_said_and_tried_again() -> None:
    answers = iter([ValueError("broken"), None])

    def exposition() -> bytes:
        answer = next(answers)
        if answer is not None:
            raise answer
        return TEXT

    async with served(exposition) as port:
        assert (await scrape(port)).status_code == 500
        assert (await scrape(port)).content == TEXT


async def test_a_slow_caller_is_disconnected() -> None:
    limits = MetricsLimits(timeout_s=0.2)
    async with served(limits=limits) as port:
        assert await send(port, b"GET /metrics HT") == b""


async def test_a_caller_that_does_not_read_is_disconnected() -> None:
    large, port = b"x" * 2**24, free_port()
    server = MetricsServer(lambda: large, port, limits=MetricsLimits(timeout_s=0.2))
    server.start()
    await server.bound()
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as caller:
        caller.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        await until(lambda: bool(server._connections))
        await until(lambda: not server._connections)
        assert await asyncio.to_thread(received, caller) < len(large)
    await server.stop()


def received(caller: socket.socket) -> int:
    """Bytes that still come."""
    count = 0
    with suppress(ConnectionResetError):
        while part := caller.recv(2**16):
            count += len(part)
    return count


async def test_callers_that_send_nothing_keep_no_scrape_out() -> None:
    limits = MetricsLimits(max_connections=4, timeout_s=HANG_S)
    async with served(limits=limits) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        assert (await scrape(port)).content == TEXT
        closed = [reader for reader, _ in idle if reader.at_eof()]
        assert len(closed) >= len(idle) - limits.max_connections
        for _, writer in idle:
            writer.close()


async def test_many_scrapes_at_once_make_the_text_a_few_times() -> None:
    made = 0

    def exposition() -> bytes:
        nonlocal made
        made += 1
        return TEXT

    limits = MetricsLimits(body_max_age_s=60)
    async with served(exposition, limits) as port:
        for _ in range(20):
            assert (await scrape(port)).content == TEXT

    assert made == 1


async def test_the_port_is_taken_when_the_former_replica_has_ended() -> None:
    limits = MetricsLimits(rebind_after_s=0.05)
    port = free_port()
    old = MetricsServer(lambda: b"old", port)
    old.start()
    await old.bound()
    new = MetricsServer(lambda: b"new", port, limits=limits)
    new.start()
    await asyncio.sleep(0.2)

    assert (await scrape(port)).content == b"old"
    await old.stop()
    await asyncio.wait_for(new.bound(), timeout=HANG_S)
    assert (await scrape(port)).content == b"new"
    await new.stop()
    with pytest.raises(httpx.ConnectError):
        await scrape(port)


async def test_it_stops_while_it_waits_for_its_port() -> None:
    with socket.create_server(("", 0)) as held:
        server = MetricsServer(lambda: TEXT, held.getsockname()[1])
        server.start()
        await asyncio.sleep(0.05)
        await asyncio.wait_for(server.stop(), timeout=HANG_S)


async def test_stopping_closes_connections() -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
    assert await asyncio.wait_for(reader.read(), timeout=HANG_S) == b""
    writer.close()


def test_without_the_variable_there_is_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_METRICS_PORT", raising=False)
    assert metrics_port() is None


def test_the_variable_names_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_METRICS_PORT", "9464")
    assert metrics_port() == 9464


@pytest.mark.parametrize("text", ["0", "65536", "-1", "a", "9464 ", "١"])
def test_what_is_no_port_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TANDEM_METRICS_PORT", text)
    with pytest.raises(ConfigError, match=r"TANDEM_METRICS_PORT is '.*'; it must be a port in \["):
        metrics_port()
