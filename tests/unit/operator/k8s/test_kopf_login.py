"""Reads of kopf from the API server, over a real HTTP connection."""

from aiohttp import web
from aiohttp.test_utils import TestServer
from lightkube import KubeConfig

from tandem_operator.k8s.kopf_login import KopfLogin
from tandem_operator.k8s.kubeconfig import user_of

DEEP = '{"a": ' * 5000 + "1" + "}" * 5000
TEXT = f'{{"items": [{{"metadata": {{"name": "deep"}}, "spec": {DEEP}}}, {{"name": "plain"}}]}}'


async def answer(_: web.Request) -> web.Response:
    return web.Response(text=TEXT, content_type="application/json")


async def test_one_deep_object_does_not_hide_the_others_from_kopf() -> None:
    application = web.Application()
    application.router.add_get("/", answer)
    async with TestServer(application) as server:
        config = KubeConfig.from_server(str(server.make_url("/"))).get()
        assert config
        login = KopfLogin(config._replace(user=user_of(config)))
        session = (await login.open_session()).aiohttp_session
        async with session, session.get(server.make_url("/")) as response:
            found = await response.json()

    assert found["items"][0]["metadata"] == {"name": "deep"}
    assert found["items"][1] == {"name": "plain"}
