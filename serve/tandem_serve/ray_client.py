"""Client of a running Ray: its REST interface, and the service's proxy."""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from tandem_serve.api.document import DEPLOYMENT
from tandem_serve.api.state import (
    ServiceState,
    last_startup_line,
    routed_replicas,
    service_state,
)
from tandem_serve.errors import ServeError

APPLICATIONS: Final = "/api/serve/applications/"

ProgressCallback = Callable[[str], None]
"""Takes one line of progress; the same line may come again."""

_HTTP_OK: Final = 200
_POLL_S: Final = 0.1
# The first PUT starts Serve itself.
_PUT_TIMEOUT_S: Final = 120.0
_GET_TIMEOUT_S: Final = 10.0
# While HAProxy reloads, two processes accept from one socket; the old one soon stops.
_STABLE_READS: Final = 3


class RayServeClient:
    """The REST interface of one Ray, and the proxy of the one service on it."""

    def __init__(self, address: str, *, token: str) -> None:
        # Loopback: the environment's proxies have no part in it.
        self._http = httpx.Client(
            base_url=address, headers={"Authorization": f"Bearer {token}"}, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def is_up(self) -> bool:
        """True when Ray answers."""
        return self._get() is not None

    def state(self, name: str) -> ServiceState | None:
        """The service `name`; None: Ray does not know it, or does not answer."""
        answer = self._get()
        return None if answer is None else service_state(answer, name)

    def put(self, document: dict[str, Any]) -> None:
        """Make Ray serve `document`.

        Raises:
            ServeError: Ray refused it, or did not answer.
        """
        try:
            response = self._http.put(APPLICATIONS, json=document, timeout=_PUT_TIMEOUT_S)
        except httpx.TransportError as error:
            raise ServeError(f"Ray did not accept the service: {error!r}.") from error
        if response.status_code != _HTTP_OK:
            raise ServeError(f"Ray refused the service: {response.text.strip()}")

    def _get(self) -> dict[str, Any] | None:
        try:
            response = self._http.get(APPLICATIONS, timeout=_GET_TIMEOUT_S)
        except httpx.TransportError:
            return None
        if response.status_code != _HTTP_OK:
            return None
        answer: dict[str, Any] = response.json()
        return answer


def wait_until_running(
    ray: RayServeClient,
    name: str,
    *,
    logs: Path,
    check: Callable[[], None],
    report: ProgressCallback,
) -> ServiceState:
    """Wait until every replica of `name` runs as last deployed; report progress.

    `check` is called at every poll and raises when waiting is pointless.

    Raises:
        ServeError: a replica failed to start; the text is its reason.
    """
    while True:
        check()
        state = ray.state(name)
        if state is not None:
            if state.failure:
                raise ServeError(state.failure, details=state.details)
            if state.is_ready:
                return state
            report(_progress(state, name, logs))
        time.sleep(_POLL_S)


def wait_until_routed(
    name: str, *, url: str, stats_port: int, replicas: Collection[str], timeout_s: float
) -> None:
    """Wait until the public port answers, and HAProxy sends requests to these replicas alone.

    After a time-out, a slower proxy or replicas that are about to stop still answer, so it is no
    failure.

    Args:
        name: the service.
        url: its public address.
        stats_port: port of HAProxy's table of servers.
        replicas: ids of the replicas that run.
        timeout_s: seconds to wait at most.

    Raises:
        ServeError: the public port does not answer in time.
    """
    deadline = time.monotonic() + timeout_s
    healthy, agreed = False, 0
    with httpx.Client(trust_env=False, timeout=_GET_TIMEOUT_S) as http:
        while not healthy or agreed < _STABLE_READS:
            healthy = _is_healthy(http, url)
            is_routed = _routed(http, name, stats_port) == frozenset(replicas)
            agreed = agreed + 1 if is_routed else 0
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
    if not healthy:
        raise ServeError(f"{url}/health did not answer with 200 within {timeout_s:.0f} s.")


def startup_line(logs: Path, name: str, replica_id: str) -> str | None:
    """The last log line of a replica's start."""
    log = logs / "serve" / f"replica_{name}_{DEPLOYMENT}_{replica_id}.log"
    try:
        return last_startup_line(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _progress(state: ServiceState, name: str, logs: Path) -> str:
    starting = [replica for replica in state.replicas if replica.state == "STARTING"]
    for replica in starting:
        line = startup_line(logs, name, replica.replica_id)
        if line:
            return line
    if not state.target_replicas:
        return "building the application"
    return f"{len(state.running)} of {state.target_replicas} replicas running"


def _is_healthy(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/health").status_code == _HTTP_OK
    except httpx.TransportError:
        return False


def _routed(http: httpx.Client, name: str, stats_port: int) -> frozenset[str]:
    url = f"http://127.0.0.1:{stats_port}/stats;csv"
    try:
        # A new connection: the old process keeps answering on the ones that it has.
        return routed_replicas(http.get(url, headers={"Connection": "close"}).text, name)
    except httpx.TransportError:
        return frozenset()
