"""Login handler for kopf: the same API server and rights as the operator's own client."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Final

import aiohttp
import kopf
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User

from tandem_operator.k8s.json_depth import truncate_depth
from tandem_operator.k8s.kubeconfig import tls_of, user_of

_PAUSE_S: Final = 5.0


class KopfLogin:
    """kopf's login handler for one kubeconfig context or service account."""

    def __init__(self, config: SingleConfig) -> None:
        self._config = config
        self._last = -_PAUSE_S

    async def open_session(self, **_: Any) -> kopf.AiohttpSession:
        """Return a new session; kopf closes it, and asks again when the API server answers 401."""
        await self._pause()
        config = self._config
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls_of(config)),
            middlewares=(_Bearer(user_of(config)),),
            response_class=_Answer,
        )
        return kopf.AiohttpSession(server=config.cluster.server, aiohttp_session=session)

    async def _pause(self) -> None:
        """Wait between logins, so that a server that refuses them is not flooded."""
        left_s = self._last + _PAUSE_S - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(left_s)
        self._last = time.monotonic()


class _Answer(aiohttp.ClientResponse):
    """A response that is read however deep it is nested."""

    async def json(self, **options: Any) -> Any:
        """Parse the response, without the levels that are too deep."""
        try:
            return await super().json(**options)
        except RecursionError:
            return json.loads(await asyncio.to_thread(truncate_depth, await self.read()))


class _Bearer:
    """Adds the user's token to each request; a service account's changes on disk every hour."""

    def __init__(self, user: User) -> None:
        self._user = user

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if token := self._token():
            request.headers["Authorization"] = f"Bearer {token}"
        return await handler(request)

    def _token(self) -> str | None:
        if self._user.token_file:
            # A few hundred bytes in memory: the kubelet mounts it from a tmpfs.
            return Path(self._user.token_file).read_text(encoding="utf-8").strip()
        return self._user.token
