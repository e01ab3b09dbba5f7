"""Reads from the head's proxy how many requests a service without replicas has refused.

The proxy counts from its start on. Serve starts it again whenever the replicas change, so what it
has counted while there is no replica came since the last one went: nothing has to be remembered,
and neither a flood of requests nor an operator that was away changes the decision.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tandem_operator.bounded_get import Limits, NoAnswer, get, url_host
from tandem_operator.k8s import names
from tandem_operator.k8s.owners import is_being_deleted, ray_cluster_of
from tandem_serve.api.at_zero import DEMAND_BACKEND

DEFAULT_ADDRESS: Final = f"http://{{ip}}:{names.PROXY_METRICS_PORT}/metrics?scope=backend"
"""Address of the metrics of a head's proxy."""

TIMEOUT_S: Final = 2.0
"""Seconds for the proxy's answer."""
_MAX_BYTES: Final = 2**20
_COUNT: Final = re.compile(
    rb'^haproxy_backend_http_requests_total\{proxy="%s"\} ([0-9]{1,15})$' % DEMAND_BACKEND.encode(),
    re.MULTILINE,
)


class Refusals:
    """Counts the requests that services without replicas have refused."""

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout_s: float = TIMEOUT_S) -> None:
        """`address` has {ip} in the place of the address of the head's pod."""
        self._address = address
        self._limits = Limits(max_bytes=_MAX_BYTES, timeout_s=timeout_s)

    async def count(self, pods: Iterable[Mapping[str, Any]], cluster: str | None) -> int | None:
        """Return the requests that the head of the Ray cluster has refused; None: unknown."""
        ip = _head_ip(pods, cluster)
        if ip is None:
            return None
        try:
            page = await get(self._address.format(ip=url_host(ip)), self._limits)
        except NoAnswer:
            return None
        match = _COUNT.search(page)
        return int(match[1]) if match else None


def _head_ip(pods: Iterable[Mapping[str, Any]], cluster: str | None) -> str | None:
    """Return the address of the head of the Ray cluster that serves."""
    for pod in pods:
        is_head = pod["metadata"].get("labels", {}).get(names.COMPONENT) == names.HEAD
        is_its = cluster is not None and ray_cluster_of(pod) == cluster
        if is_head and is_its and not is_being_deleted(pod):
            ip: str | None = pod.get("status", {}).get("podIP")
            return ip
    return None
