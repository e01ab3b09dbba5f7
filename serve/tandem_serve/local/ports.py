"""Ports of one local Ray: a free block of neighbours, so that several can run."""

import random
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from tandem_serve.errors import ServeError

# Below Linux's ephemeral ports, above the ports of well-known services.
_FIRST: Final = 20_000
_LAST: Final = 32_000
_REPLICAS: Final = 250
_SINGLE: Final = 20
_BLOCK: Final = _SINGLE + 2 * _REPLICAS
_TRIES: Final = 50


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one local Ray, counted from `base`."""

    base: int

    @property
    def gcs(self) -> int:
        """Ray's control store."""
        return self.base

    @property
    def dashboard(self) -> int:
        """Ray's REST interface."""
        return self.base + 1

    @property
    def haproxy_stats(self) -> int:
        """HAProxy's table of servers."""
        return self.base + 2

    def head_flags(self) -> list[str]:
        """Flags of `ray start` that take a port."""
        names = (
            "dashboard-agent-listen-port",
            "dashboard-agent-grpc-port",
            "metrics-export-port",
            "ray-client-server-port",
            "node-manager-port",
            "object-manager-port",
            "runtime-env-agent-port",
        )
        numbered = [f"--{name}={self.base + 3 + i}" for i, name in enumerate(names)]
        return [f"--port={self.gcs}", f"--dashboard-port={self.dashboard}", *numbered]

    def environment(self) -> dict[str, str]:
        """Environment variables of Ray that take a port."""
        http, grpc = self.base + _SINGLE, self.base + _SINGLE + _REPLICAS
        ports = {
            "RAY_SERVE_HAPROXY_STATS_PORT": self.haproxy_stats,
            "RAY_SERVE_HAPROXY_METRICS_PORT": self.base + 11,
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": self.base + 12,
            "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": self.base + 13,
            "DASHBOARD_METRIC_PORT": self.base + 14,
            "AUTOSCALER_METRIC_PORT": self.base + 15,
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": http,
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": http + _REPLICAS - 1,
            "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": grpc,
            "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": grpc + _REPLICAS - 1,
        }
        return {name: str(port) for name, port in ports.items()}


def free_ports() -> Ports:
    """A block of ports on which nothing listens now.

    Raises:
        ServeError: none was found.
    """
    for base in _candidates():
        if all(is_free("127.0.0.1", port) for port in range(base, base + _BLOCK)):
            return Ports(base)
    raise ServeError(
        f"Cannot find {_BLOCK} consecutive free ports between {_FIRST} and {_LAST} on this "
        "machine; stop a process that listens there."
    )


def is_free(host: str, port: int) -> bool:
    """True when a server could listen at `host:port` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family)) as probe:
        # As servers do: a lingering connection does not prevent listening, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, TypeError, UnicodeError):  # the last two: no name of a host
            return False
    return True


def _candidates() -> Iterator[int]:
    # Any draw will do; it only keeps services that start together apart.
    bases = list(range(_FIRST, _LAST - _BLOCK, _BLOCK))
    yield from random.sample(bases, min(_TRIES, len(bases)))
