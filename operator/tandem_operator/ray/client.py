"""Client of Ray's REST interface on the head of a Ray cluster.

The server belongs to the tenant. It gets Ray's token and nothing else; time and length of its
answers are bounded.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from tandem_operator.bounded_get import (
    AnswerTimeout,
    Limits,
    NoAnswer,
    UnexpectedStatus,
    get,
    url_host,
)
from tandem_operator.ray.answer import MAX_ANSWER_BYTES, InvalidAnswer, read_answer
from tandem_operator.ray.backoff import RayBackoff
from tandem_operator.status.pod_view import PodView
from tandem_operator.status.ray_view import RayAnswers

DEFAULT_ADDRESS: Final = "http://{ip}:8265"
"""Address of Ray's REST interface. The head's own IP needs no name service, and tells the two
clusters of an upgrade apart, which the Service in front of them does not."""

_TIMEOUT_S: Final = 3.0
_PATH: Final = "/api/serve/applications/"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayReplies:
    """Answers and errors of the heads of a service, by the names of their Ray clusters."""

    answers: RayAnswers = field(default_factory=dict)
    ray_errors: Mapping[str, str] = field(default_factory=dict)
    """Reason why a head gives no valid answer."""


class RayClient:
    """Asks Ray for its applications; a missing answer is data, not an exception."""

    def __init__(
        self, address: str, count: Callable[[str], None], timeout_s: float = _TIMEOUT_S
    ) -> None:
        """`address` may contain {ip}, {cluster} and {namespace}.

        `count` takes the result of each request: a status code, `none` or `invalid`. `timeout_s`
        bounds a whole answer, its last byte included.
        """
        self._address = address
        self._count = count
        self._limits = Limits(max_bytes=MAX_ANSWER_BYTES, timeout_s=timeout_s)
        self._backoff = RayBackoff[str]()

    async def ask(
        self, heads: Mapping[str, PodView], service: str, namespace: str, token: str
    ) -> RayReplies:
        """Ask each of `heads`, named by their clusters, about `service`.

        `token` is Ray's own, and each of `heads` is the service's own.
        """
        replies = await asyncio.gather(
            *(
                self._ask(self._url(cluster, head, namespace), service, token)
                for cluster, head in heads.items()
            )
        )
        replies_by_head = dict(zip(heads, replies, strict=True))
        return RayReplies(
            answers={
                name: reply for name, reply in replies_by_head.items() if not isinstance(reply, str)
            },
            ray_errors={
                name: reply for name, reply in replies_by_head.items() if isinstance(reply, str)
            },
        )

    def _url(self, cluster: str, head: PodView, namespace: str) -> str:
        ip = head.ip and url_host(head.ip)
        return self._address.format(ip=ip, cluster=cluster, namespace=namespace) + _PATH

    async def _ask(self, url: str, service: str, token: str) -> dict[str, Any] | str:
        """Return the answer of one head, or the reason why there is none."""
        if reason := self._backoff.reason(url, time.monotonic()):
            return reason
        try:
            body = await get(url, self._limits, token=token)
        except AnswerTimeout as error:
            self._backoff.record_timeout(url, str(error), time.monotonic())
            self._count("none")
            return str(error)
        except NoAnswer as error:
            self._backoff.reset(url)
            self._count(str(error.status) if isinstance(error, UnexpectedStatus) else "none")
            return str(error)
        self._backoff.reset(url)
        return self._read(body, service)

    def _read(self, body: bytes, service: str) -> dict[str, Any] | str:
        try:
            answer = read_answer(body, service)
        except InvalidAnswer as error:
            self._count("invalid")
            return f"its answer is not Ray's: {error}"
        self._count(str(HTTPStatus.OK.value))
        return answer
