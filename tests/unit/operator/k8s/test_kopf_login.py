"""Reads of kopf from the API server, over a real HTTP connection."""

from aiohttp import web
from aiohttp.test_utils import TestServer

from tandem_operator.k8s.kopf_login import KopfLogin
from tests.unit.operator.samples import connection_to

DEEP = '{"a": ' * 5000 + "1" + "}" * 5000
TEXT = f'{{"items": [{{"metadata": {{"name": "deep"}}, "spec": {DEEP}}}, {{"name": "plain"}}]}}'


async def answer(_: web.Request) -> web.Response:
    return web.Response(text=TEXT, content_type="application/json")


async def test_one_deep_object_does_not_hide_the_others_from_kopf() -> None:
    application = web.Application()
    application.router.add_get("/", answer)
    async with TestServer(application) as server:
        login = KopfLogin(connection_to(server.make_url("/")))
        session = (await login.open_session()).aiohttp_session
        async with session, session.get(server.make_url("/")) as response:
            found = await response.json()

    assert found["items"][0]["metadata"] == {"name": "deep"}
    assert found["items"][1] == {"name": "plain"}
