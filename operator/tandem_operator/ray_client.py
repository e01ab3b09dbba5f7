"""The door to Ray: its REST interface on the head of a Ray cluster."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import aiohttp

from tandem_operator.pods import PodView
from tandem_operator.ray_view import RayAnswers

DEFAULT_ADDRESS: Final = "http://{ip}:8265"
"""Where Ray's REST interface is. The head's own address needs no name service, and tells the two
clusters of an upgrade apart, which the Service in front of them does not."""

_TIMEOUT_S: Final = 3.0
_LONGEST_ANSWER: Final = 8 * 2**20


class RayClient:
    """Asks Ray for its applications; that Ray does not answer is no error."""

    def __init__(
        self, session: aiohttp.ClientSession, address: str, count: Callable[[str], None]
    ) -> None:
        self._session = session
        self._address = address
        self._count = count

    @classmethod
    def open(cls, address: str, count: Callable[[str], None]) -> Self:
        """A client; `address` may have {ip}, {cluster} and {namespace} in it.

        `count` takes how each request ended: a status code, `none` or `garbled`.
        """
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        return cls(aiohttp.ClientSession(timeout=timeout), address, count)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._session.close()

    async def ask(self, heads: list[PodView], namespace: str, token: str | None) -> RayAnswers:
        """What Ray says on each head, by the name of its cluster; who does not answer is left out.

        `token` is Ray's own, and goes nowhere else.
        """
        answers = await asyncio.gather(*(self._ask(head, namespace, token) for head in heads))
        found = zip(heads, answers, strict=True)
        return {head.cluster: answer for head, answer in found if answer is not None}

    async def _ask(
        self, head: PodView, namespace: str, token: str | None
    ) -> Mapping[str, Any] | None:
        address = self._address.format(ip=head.ip, cluster=head.cluster, namespace=namespace)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{address}/api/serve/applications/"
        try:
            async with self._session.get(url, headers=headers) as response:
                self._count(str(response.status))
                return await _answer(response)
        except (aiohttp.ClientError, TimeoutError):
            self._count("none")
        except (ValueError, TypeError):
            self._count("garbled")
        return None


async def _answer(response: aiohttp.ClientResponse) -> Mapping[str, Any] | None:
    if not response.ok or (response.content_length or 0) > _LONGEST_ANSWER:
        return None
    answer = await response.json()
    return answer if isinstance(answer, Mapping) else None
