"""Answers of the API server as errors with sentences; over a real HTTP connection."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_operator.k8s import errors
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.kinds import LEASE, POD, RAY_SERVICE
from tandem_operator.k8s.objects import NamespacedName
from tests.unit.operator.samples import connection_to

KEY = NamespacedName("demo", "tiny")
MANIFEST = {
    "apiVersion": "ray.io/v1",
    "kind": "RayService",
    "metadata": {"name": "tiny", "namespace": "demo"},
}


class Api:
    """An API server that answers what it is told to."""

    def __init__(self) -> None:
        self.code, self.body, self.headers = 200, {}, {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.counted: list[tuple[str, str, str]] = []

    code: int
    body: Any
    headers: dict[str, str]
    text: str | None = None
    """Answer in place of the body."""

    def says(self, code: int, details: dict[str, Any] | None = None, **headers: str) -> None:
        status = {"kind": "Status", "code": code, "message": "no", "details": details or {}}
        self.code, self.body = code, status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.method, request.path, dict(request.query), body))
        if self.text is not None:
            return web.Response(text=self.text, content_type="application/json")
        return web.json_response(self.body, status=self.code, headers=self.headers)

    def count(self, verb: str, resource: str, code: str) -> None:
        self.counted.append((verb, resource, code))


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
async def kube(api: Api) -> AsyncIterator[KubeClient]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    async with TestServer(application) as server:
        kube = KubeClient.connect(connection_to(server.make_url("/")), api.count)
        yield kube
        await kube.close()


CALLS: dict[str, Callable[[KubeClient], Awaitable[object]]] = {
    "get": lambda kube: kube.get(RAY_SERVICE, KEY),
    "list": lambda kube: kube.list(RAY_SERVICE, None),
    "create": lambda kube: kube.create(RAY_SERVICE, MANIFEST),
    "update": lambda kube: kube.replace(RAY_SERVICE, MANIFEST),
    "patch": lambda kube: kube.apply(RAY_SERVICE, MANIFEST, force=True),
}


async def test_one_deep_object_does_not_hide_the_others(kube: KubeClient, api: Api) -> None:
    """A user who may write one object could else stop the operator for all."""
    deep: Any = 1
    for _ in range(700):
        deep = {"a": deep}
    items = [{"metadata": {"name": "deep"}, "spec": deep}, {"metadata": {"name": "plain"}}]
    api.body = {"items": items, "metadata": {}}
    text = json.dumps(api.body).replace('{"a": 1}', '{"a": ' * 5000 + "1" + "}" * 5000)
    api.text = text

    found = await kube.list(RAY_SERVICE, None)

    assert [one["metadata"]["name"] for one in found] == ["deep", "plain"]


@pytest.mark.parametrize("text", ["<html>sign in</html>", '{"items": [', "", "[]", '{"items": 1}'])
async def test_what_is_no_answer_of_the_api_server_passes_by(
    kube: KubeClient, api: Api, text: str
) -> None:
    api.text = text

    with pytest.raises(errors.Unreachable, match="none of the API server's answers"):
        await kube.list(RAY_SERVICE, None)
    assert api.counted == [("list", "rayservices", "invalid")]


async def test_a_list_can_be_cut_short(kube: KubeClient, api: Api) -> None:
    items = [{"metadata": {"name": f"e{number}"}} for number in range(4)]
    api.body = {"items": items, "metadata": {"continue": "more"}}

    found = await kube.list(POD, "demo", fields={"type": "Warning"}, limit=3)

    assert [one["metadata"]["name"] for one in found] == ["e0", "e1", "e2"]
    ((_, _, query, _),) = api.requests
    assert query["limit"] == "3"
    assert query["fieldSelector"] == "type=Warning"


@pytest.mark.parametrize(("verb", "call"), CALLS.items(), ids=CALLS)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, errors.Refused),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (409, errors.Conflict),
        (422, errors.Refused),
        (429, errors.Overloaded),
        (500, errors.Overloaded),
        (503, errors.Overloaded),
    ],
)
async def test_every_answer_has_its_error(
    api: Api,
    kube: KubeClient,
    verb: str,
    call: Callable[[KubeClient], Awaitable[object]],
    code: int,
    kind: type[errors.KubeError],
) -> None:
    api.says(code)

    with pytest.raises(kind, match=f"answered '{verb} rayservices .*' with {code}: no"):
        await call(kube)

    assert api.counted == [(verb, "rayservices", str(code))]


async def test_an_object_that_is_not_there_is_none(api: Api, kube: KubeClient) -> None:
    api.says(404, {"name": "tiny", "kind": "rayservices"})

    assert await kube.get(RAY_SERVICE, KEY) is None


async def test_a_kind_that_is_not_there_is_another_matter(api: Api, kube: KubeClient) -> None:
    api.says(404)

    with pytest.raises(errors.KindMissing, match=r"serves no rayservices\.ray\.io; install"):
        await kube.get(RAY_SERVICE, KEY)


async def test_the_api_servers_wish_to_wait_is_kept(api: Api, kube: KubeClient) -> None:
    api.says(429, Retry_After="7")

    with pytest.raises(errors.Overloaded) as caught:
        await kube.get(RAY_SERVICE, KEY)

    assert caught.value.retry_after_s == 7.0


async def test_a_server_that_is_not_there_is_unreachable(api: Api) -> None:
    kube = KubeClient.connect(connection_to("http://127.0.0.1:1"), api.count)

    with pytest.raises(errors.Unreachable, match="did not answer 'get rayservices demo/tiny'"):
        await kube.get(RAY_SERVICE, KEY)

    await kube.close()
    assert api.counted == [("get", "rayservices", "none")]


async def test_our_own_objects_are_forced_and_new_ones_are_not(api: Api, kube: KubeClient) -> None:
    api.body = MANIFEST
    await kube.apply(RAY_SERVICE, MANIFEST, force=True)
    await kube.apply(RAY_SERVICE, MANIFEST, force=False)

    (_, path, first, body), (_, _, second, _) = api.requests
    assert path == "/apis/ray.io/v1/namespaces/demo/rayservices/tiny"
    assert first == {"fieldManager": "tandem-operator", "force": "true"}
    assert second == {"fieldManager": "tandem-operator"}
    assert body == MANIFEST


async def test_a_list_is_of_one_namespace_or_of_all(api: Api, kube: KubeClient) -> None:
    api.body = {"items": [{"metadata": {"name": "a"}}], "metadata": {}}

    assert await kube.list(POD, "demo", {"app": None}) == [{"metadata": {"name": "a"}}]
    await kube.list(POD, None)

    (_, first, query, _), (_, second, _, _) = api.requests
    assert (first, second) == ("/api/v1/namespaces/demo/pods", "/api/v1/pods")
    assert query == {"labelSelector": "app"}


async def test_who_does_not_lead_writes_nothing_but_the_lease(api: Api, kube: KubeClient) -> None:
    kube.may_write = lambda: False
    api.body = MANIFEST

    for verb in ("create", "update", "patch"):
        with pytest.raises(errors.NotLeading):
            await CALLS[verb](kube)
    assert not api.requests

    lease = {**MANIFEST, "apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    await kube.replace(LEASE, lease)
    assert len(api.requests) == 1
