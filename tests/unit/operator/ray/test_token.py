"""Ray's token of a service: worked out, and made sure of."""

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import Forbidden, Refused
from tandem_operator.ray.token import RayToken, ray_token
from tandem_operator.ray.token_key import NAME, TokenKey
from tandem_operator.reconcile.service_state import ConfirmedToken
from tests.unit.operator.samples import connection_to

KEY = b"k" * 32
OWNER: dict[str, str] = {"namespace": "demo", "service": "tiny", "uid": "u-1"}


def test_the_same_service_always_has_the_same_token() -> None:
    assert ray_token(KEY, **OWNER) == ray_token(KEY, **OWNER)


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        (b"j" * 32, OWNER),
        (KEY, {**OWNER, "namespace": "other"}),
        (KEY, {**OWNER, "service": "other"}),
        (KEY, {**OWNER, "uid": "u-2"}),
        (KEY, {**OWNER, "namespace": "demo/tiny", "service": "u-1", "uid": ""}),
    ],
    ids=["another key", "namespace", "name", "object of this name", "cut elsewhere"],
)
def test_everything_else_has_another_token_in_another_secret(
    key: bytes, owner: dict[str, str]
) -> None:
    one, other = ray_token(KEY, **OWNER), ray_token(key, **owner)

    assert one.value != other.value
    assert one.secret != other.secret


def test_a_token_says_nothing_of_itself() -> None:
    token = ray_token(KEY, **OWNER)

    assert token.value not in repr(token)
    assert hashlib.sha256(KEY).hexdigest()[:8] not in token.secret
    assert len(base64.urlsafe_b64decode(token.value + "=")) == 32


def test_a_token_that_was_not_confirmed_for_long_is_confirmed_again() -> None:
    confirmed = ConfirmedToken()
    token = RayToken("tiny-token-1", "x")

    def is_stale(secret: str, now: float) -> bool:
        return confirmed.is_stale(secret, now, after_s=600.0)

    assert is_stale(token.secret, 0.0)
    confirmed.confirm(token.secret, now=0.0)

    assert not is_stale(token.secret, 600.0)
    assert is_stale(token.secret, 601.0)
    assert is_stale("tiny-token-2", 1.0), "another token is not there yet"


class Secrets:
    """An API server with Secrets alone."""

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.asked: list[str] = []
        self.is_closed = False
        self.rival: dict[str, Any] | None = None
        """A Secret that another process makes just before ours."""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        if self.is_closed:
            return _status(403)
        if request.method == "POST":
            return self._made(await request.json())
        name = request.path.rpartition("/")[2]
        return web.json_response(self.there[name]) if name in self.there else _status(404, name)

    def _made(self, manifest: dict[str, Any]) -> web.Response:
        name = manifest["metadata"]["name"]
        if self.rival:
            self.there[name] = self.rival
        if name in self.there:
            return _status(409, name)
        self.there[name] = manifest
        return web.json_response(manifest, status=201)


def _status(code: int, name: str = "") -> web.Response:
    body = {"kind": "Status", "code": code, "message": "no", "details": {"name": name}}
    return web.json_response(body, status=code)


@pytest.fixture
def api() -> Secrets:
    return Secrets()


@pytest.fixture
async def kube(api: Secrets) -> AsyncIterator[KubeClient]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    async with TestServer(application) as server:
        kube = KubeClient.connect(connection_to(server.make_url("/")), lambda *_: None)
        yield kube
        await kube.close()


def held(key: bytes) -> dict[str, Any]:
    return {"metadata": {"name": NAME}, "data": {"key": base64.b64encode(key).decode()}}


async def test_the_key_is_made_once_and_read_ever_after(kube: KubeClient, api: Secrets) -> None:
    first = await TokenKey(kube, "sys").read()
    again = TokenKey(kube, "sys")

    assert len(first) == 32
    assert await again.read() == first
    assert await again.read() == first
    assert api.asked == ["GET", "POST", "GET"]
    assert api.there[NAME]["immutable"]
    assert "ownerReferences" not in api.there[NAME]["metadata"]


async def test_of_two_processes_that_make_the_key_both_have_the_same(
    kube: KubeClient, api: Secrets
) -> None:
    api.rival = held(KEY)

    assert await TokenKey(kube, "sys").read() == KEY


async def test_a_key_that_is_too_short_is_refused_with_the_way_out(
    kube: KubeClient, api: Secrets
) -> None:
    for text in (held(b"k" * 31), {"data": {"key": "%%"}}, {"data": None}):
        api.there[NAME] = {"metadata": {"name": NAME}, **text}

        with pytest.raises(Refused, match=r"sys/tandem-operator-token-key.*32 bytes.*delete it"):
            await TokenKey(kube, "sys").read()


async def test_a_key_that_could_not_be_read_is_tried_again(kube: KubeClient, api: Secrets) -> None:
    key = TokenKey(kube, "sys")
    api.is_closed = True
    with pytest.raises(Forbidden, match="'get' on secrets"):
        await key.read()

    api.is_closed = False

    assert len(await key.read()) == 32
