"""Login handler for kopf: the same API server and rights as the operator's own client."""

import asyncio
import json
import time
from typing import Any, Final

import aiohttp
import kopf

from tandem_operator.k8s.connection import Connection
from tandem_operator.k8s.json_depth import truncate_depth

_PAUSE_S: Final = 5.0


class KopfLogin:
    """kopf's login handler for one kubeconfig context or service account."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = -_PAUSE_S

    async def open_session(self, **_: Any) -> kopf.AiohttpSession:
        """Return a new session; kopf closes it, and asks again when the API server answers 401."""
        await self._pause()
        session = self._connection.session(_TruncatingResponse)
        return kopf.AiohttpSession(server=self._connection.server, aiohttp_session=session)

    async def _pause(self) -> None:
        """Wait between logins, so that a server that refuses them is not flooded."""
        left_s = self._last + _PAUSE_S - time.monotonic()
        if left_s > 0:
            await asyncio.sleep(left_s)
        self._last = time.monotonic()


class _TruncatingResponse(aiohttp.ClientResponse):
    """A response that is read however deep it is nested."""

    async def json(self, **options: Any) -> Any:
        """Parse the response, without the levels that are too deep."""
        try:
            return await super().json(**options)
        except RecursionError:
            return json.loads(await asyncio.to_thread(truncate_depth, await self.read()))
