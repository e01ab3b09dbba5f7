"""Ray dashboards, an honest one and hostile ones, as the operator reads them over real HTTP."""

import asyncio
import gzip
import itertools
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.ray.answer import MAX_ANSWER_BYTES, InvalidAnswer, read_answer
from tandem_operator.ray.backoff import RayBackoff
from tandem_operator.ray.client import RayClient, RayReplies
from tandem_operator.status.document import status_document
from tandem_operator.status.pod_view import PodView
from tandem_operator.status.ray_view import own_heads
from tests.patience import HANG_S
from tests.unit.operator.samples import NAME, NAMESPACE, answer, digest, facts, ray_service
from tests.unit.operator.samples import view as sample_view

TOKEN = "rays-own-token"  # noqa: S105  # the test's own
SHORT_S = 0.5
"""For heads that use up any time; the others' answers must not be late on a busy machine."""
MOST_MEMORY = 32 * 2**20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def head(cluster: str = "old") -> PodView:
    return PodView(
        name=f"{cluster}-head", cluster=cluster, is_head=True, is_ready=True,
        ip="127.0.0.1", failure=None,
    )  # fmt: skip


@asynccontextmanager
async def dashboard(handler: Handler) -> AsyncIterator[str]:
    """The address of a server that answers everything in this way."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(application, host="127.0.0.1") as server:
        yield f"http://{{ip}}:{server.port}"


async def ask(
    handler: Handler, counted: list[str] | None = None, *, token: str = TOKEN
) -> RayReplies:
    async with dashboard(handler) as address:
        return await ask_at(address, counted, token=token)


async def ask_at(
    address: str,
    counted: list[str] | None = None,
    *,
    token: str = TOKEN,
    timeout_s: float = HANG_S,
) -> RayReplies:
    count = [] if counted is None else counted
    client = RayClient(address, count.append, timeout_s=timeout_s)
    return await client.ask({"old": head()}, NAME, NAMESPACE, token)


def says(document: Any) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response(document)

    return handler


def sends(body: bytes, **headers: str) -> Handler:
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def handler(_: web.Request) -> web.Response:
        return web.Response(body=body, headers=named)

    return handler


async def test_rays_answer_comes_with_the_token() -> None:
    seen: list[str | None] = []

    async def handler(request: web.Request) -> web.Response:
        seen.extend(request.headers.get(name) for name in ("Authorization", "Accept-Encoding"))
        return web.json_response(answer("RUNNING"))

    counted: list[str] = []
    replies = await ask(handler, counted)

    (replica,) = replies.answers["old"]["applications"][NAME]["deployments"]["replica"]["replicas"]
    assert replica["state"] == "RUNNING"
    assert seen == [f"Bearer {TOKEN}", "identity"]
    assert (replies.ray_errors, counted) == ({}, ["200"])


async def test_a_redirect_is_not_followed_and_the_token_stays() -> None:
    collected: list[Mapping[str, str]] = []

    async def collect(request: web.Request) -> web.Response:
        collected.append(request.headers)
        return web.json_response(answer("RUNNING"))

    async with dashboard(collect) as elsewhere:
        # Another port is another origin only to a browser.
        target = elsewhere.format(ip="127.0.0.1")
        for status in (301, 302, 303, 307, 308):

            async def redirect(_: web.Request, status: int = status) -> web.Response:
                return web.Response(status=status, headers={"Location": f"{target}/collect"})

            replies = await ask(redirect)
            assert replies.ray_errors == {"old": f"it answers with the status {status}"}

    assert collected == []


def endless(chunk: bytes, pause_s: float = 0.0) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(chunk)
            await asyncio.sleep(pause_s)

    return handler


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def missing(_: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


def nested(depth: int) -> bytes:
    return b'{"applications":' + b"[" * depth + b"]" * depth + b"}"


def with_replica(**fields: Any) -> dict[str, Any]:
    document = answer("RUNNING")
    document["applications"][NAME]["deployments"]["replica"]["replicas"][0] |= fields
    return document


def with_deployment(**fields: Any) -> dict[str, Any]:
    document = answer("RUNNING")
    document["applications"][NAME]["deployments"]["replica"] |= fields
    return document


LATE = "no complete response within"
HUGE = b'{"applications": "' + b"x" * (2 * MAX_ANSWER_BYTES) + b'"}'
BOMB = gzip.compress(b'{"applications": "' + b"x" * (60 * 2**20) + b'"}')
FITS = MAX_ANSWER_BYTES - 100

HOSTILE: dict[str, tuple[Handler, str]] = {
    "endless": (endless(b"[" * 65536), "longer than 4 MiB"),
    "endless and dripping": (endless(b" ", pause_s=0.01), LATE),
    "silent": (silent, LATE),
    "huge": (sends(HUGE), "longer than 4 MiB"),
    "a gzip bomb": (sends(BOMB, Content_Encoding="gzip"), "its answer is compressed"),
    "gzip that was not asked for": (
        sends(gzip.compress(json.dumps(answer("RUNNING")).encode()), Content_Encoding="gzip"),
        "its answer is compressed",
    ),
    "an unknown packing": (sends(b"{}", Content_Encoding="br, gzip"), "its answer is compressed"),
    "not there": (missing, "answers with the status 404"),
    "no JSON": (sends(b"<html>"), "not JSON"),
    "a charset that is none": (
        sends(b'"\xff\xfe"', Content_Type="application/json; charset=zip"), "not JSON",
    ),
    "NaN": (sends(b'{"applications": NaN}'), "not JSON"),
    "a number with five thousand digits": (sends(b"9" * 5000), "not JSON"),
    "deep": (sends(nested(9_000)), "nested too deeply"),
    "a list where a mapping belongs": (says([]), "should be a mapping"),
    "applications in a list": (says({"applications": [1]}), "should be a mapping"),
    "an application that is a number": (says({"applications": {NAME: 1}}), "should be a mapping"),
    "a status that is a list": (
        says({"applications": {NAME: {"status": []}}}), "another type or size",
    ),
    "a count beyond all counts": (
        says(with_deployment(target_num_replicas=10**400)), "another type or size",
    ),
    "a count that is infinite": (
        sends(json.dumps(with_deployment(target_num_replicas=0)).replace(
            '"target_num_replicas": 0', '"target_num_replicas": 1e999').encode()),
        "another type or size",
    ),
    "a state of a million letters": (says(with_replica(state="x" * 10**6)), "another type or size"),
    "an endless list of replicas": (
        says(with_deployment(replicas=[{}] * 15_000)), "another type or size",
    ),
    "a list of nothing": (sends(b"[" + b"[]," * (FITS // 3) + b"0]"), "more than 20000 parts"),
    "a list of zeros": (sends(b"[" + b"0," * (FITS // 2) + b"0]"), "more than"),
}  # fmt: skip


@pytest.mark.parametrize(("handler", "why"), HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_dashboard_does_not_answer_and_says_why(handler: Handler, why: str) -> None:
    async with dashboard(handler) as address:
        tracemalloc.start()
        timeout_s = SHORT_S if why == LATE else HANG_S
        replies = await ask_at(address, timeout_s=timeout_s)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert replies.answers == {}
    assert why in replies.ray_errors["old"]
    assert len(replies.ray_errors["old"]) < 200
    # The server's own part of it is in here, too.
    assert peak < MOST_MEMORY + len(HUGE)


async def speak(lines: Callable[[], Any], writer: asyncio.StreamWriter) -> None:
    try:
        for line in lines():
            writer.write(line)
            await writer.drain()
    except (ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


def endless_headers() -> Any:
    yield b"HTTP/1.1 200 OK\r\n"
    yield from (b"X-%d: %s\r\n" % (number, b"x" * 4000) for number in itertools.count())


RAW: dict[str, Callable[[], Any]] = {
    "endless headers": endless_headers,
    "one endless header": lambda: itertools.chain(
        [b"HTTP/1.1 200 OK\r\nX: "], itertools.repeat(b"x" * 65536)
    ),
    "an endless first line": lambda: itertools.repeat(b"HTTP/1.1 200 OK" * 4096),
    "endless interim responses": lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "no HTTP": lambda: [b"SSH-2.0-hello\r\n"],
    "a length that lies": lambda: [b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{"],
    "a length that is none": lambda: [b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}"],
    "chunks that are none": lambda: [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}"
    ],
    "nothing at all": list,
}


@pytest.mark.parametrize("lines", RAW.values(), ids=RAW)
async def test_what_is_hardly_http_does_not_answer_either(lines: Callable[[], Any]) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await speak(lines, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        tracemalloc.start()
        replies = await ask_at(f"http://{{ip}}:{port}", timeout_s=SHORT_S)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert replies.answers == {}
    assert replies.ray_errors["old"].startswith("no ")
    assert peak < MOST_MEMORY


async def test_one_hostile_head_leaves_the_other_ones_answer_alone() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if "new" in request.path:
            return await endless(b"[" * 65536)(request)
        return web.json_response(answer("RUNNING"))

    async with dashboard(handler) as address:
        client = RayClient(f"{address}/{{cluster}}", lambda _: None, timeout_s=HANG_S)
        heads = {"old": head(), "new": head("new")}
        replies = await client.ask(heads, NAME, NAMESPACE, TOKEN)

    assert set(replies.answers) == {"old"}
    assert set(replies.ray_errors) == {"new"}


async def test_a_head_that_uses_up_its_time_is_left_alone_for_a_while() -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return await silent(request)

    async with dashboard(handler) as address:
        client = RayClient(address, lambda _: None, timeout_s=SHORT_S)
        first = await client.ask({"old": head()}, NAME, NAMESPACE, TOKEN)
        second = await client.ask({"old": head()}, NAME, NAMESPACE, TOKEN)

    assert len(asked) == 1
    assert first == second, "the status stays as it is"


def test_a_slow_head_rests_ever_longer_until_it_is_prompt() -> None:
    backoff, now = RayBackoff[str](), 0.0
    pauses = []
    for _ in range(7):
        backoff.record_timeout("url", "slow", now)
        pauses.append(next(pause for pause in range(100) if not backoff.reason("url", now + pause)))
        now += pauses[-1]

    assert pauses == [3, 6, 12, 24, 48, 60, 60]
    backoff.reset("url")
    backoff.record_timeout("url", "slow", now)
    assert backoff.reason("url", now + 2.9) == "slow"
    assert backoff.reason("url", now + 3.0) is None
    assert backoff.reason("another", now) is None


def test_no_more_slow_heads_are_kept_in_mind_than_there_may_be() -> None:
    backoff = RayBackoff[int]()
    for number in range(5000):
        backoff.record_timeout(number, "slow", 0.0)

    assert backoff.reason(0, 0.0) is None
    assert backoff.reason(4999, 0.0) == "slow"


async def test_cookies_are_not_kept() -> None:
    seen: list[Mapping[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers)
        response = web.json_response(answer("RUNNING"))
        response.set_cookie("big", "x" * 4000)
        return response

    async with dashboard(handler) as address:
        client = RayClient(address, lambda _: None)
        for _ in range(2):
            await client.ask({"old": head()}, NAME, NAMESPACE, TOKEN)

    assert "Cookie" not in seen[1]


async def test_a_text_that_no_log_could_write_becomes_one() -> None:
    document = with_deployment(message="A replica failed to start\udcff\0" + "x" * 10**6 + "\nE: z")

    replies = await ask(says(document))

    said = replies.answers["old"]["applications"][NAME]["deployments"]["replica"]["message"]
    said.encode()
    assert said.startswith("A replica failed to start?x")
    assert said.endswith("\nE: z")
    assert len(said) < 2**17


CLUSTER = {"metadata": {"uid": "cluster", "ownerReferences": [{"uid": "ray", "controller": True}]}}


def owned(owner: str | None, name: str = "old") -> PodView:
    return PodView(
        name="h", cluster=name, is_head=True, is_ready=True, ip="10.0.0.7", failure=None,
        owner=owner,
    )  # fmt: skip


def serving_service() -> dict[str, Any]:
    found = ray_service(active=digest("old", "RUNNING"))
    found["metadata"]["uid"] = "ray"
    return found


def test_the_head_that_its_own_cluster_controls_is_queried() -> None:
    pod = owned("cluster")

    assert own_heads(serving_service(), {"old": CLUSTER}, [owned(None), pod]) == {"old": pod}


@pytest.mark.parametrize(
    ("clusters", "owner"),
    [
        ({"old": CLUSTER}, None),
        ({"old": CLUSTER}, "another"),
        ({}, "cluster"),
        ({"old": {"metadata": {"uid": "cluster"}}}, "cluster"),
        ({"new": CLUSTER}, "cluster"),
    ],
    ids=[
        "a pod without an owner",
        "a pod of another owner",
        "no such cluster",
        "a cluster of another owner",
        "a cluster that the service does not name",
    ],
)
def test_a_pod_that_only_wears_the_labels_is_not(
    clusters: dict[str, Any], owner: str | None
) -> None:
    assert own_heads(serving_service(), clusters, [owned(owner)]) == {}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if not isinstance(value, dict | list):
        return
    for step, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _paths(part, (*path, step))


@given(data=st.data(), value=_JSON)
def test_whatever_stands_in_an_answer_it_is_refused_or_understood(
    data: st.DataObject, value: Any
) -> None:
    document: Any = {"x": answer("RUNNING", "STARTING", target=2)}
    *way, last = data.draw(st.sampled_from([*_paths(document)][1:]))
    node = document
    for step in way:
        node = node[step]
    node[last] = value

    try:
        found = read_answer(json.dumps(document["x"]).encode(), NAME)
    except InvalidAnswer:
        return
    view = sample_view(ray_service(active=digest("old", "RUNNING"), endpoints=1), old=found)
    json.dumps(status_document(facts(ray=view, is_applied=False)))
