"""The environment of every Ray process that serves: head, workers, and the local one.

`tandem_serve.local.ray_head` overrides some of them. Controller, proxies and replicas read them
when they are imported, so they stand in the environment of `ray start` (or of the pod). They were
measured together; reasons: docs/design/decisions/kubernetes-and-ray.md.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

RAY_ENV: Final[Mapping[str, str]] = MappingProxyType(
    {
        # HAProxy in front of the replicas, and no thread between HTTP and the handler:
        # an eighth of the CPU time per token of the Python proxy.
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # HAProxy reloads when a replica joins or leaves, and the old process cuts the streams
        # that still run after this time.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "3600",
        # While a replica applies a live change, Serve takes it out of the proxy, and puts it back:
        # within one reload, it never leaves. The default of 0.1 s makes two reloads, and between
        # them only a slower proxy on the head answers, or none at all.
        "RAY_SERVE_HAPROXY_BROADCAST_COALESCE_S": "1",
        # More connections than a replica with the largest maxLinkNum has slots (3 × 4096), so that
        # what is too much gets the replica's own 429; the default is 4096. tandem-haproxy lowers it
        # to what the process may open.
        "RAY_SERVE_HAPROXY_MAXCONN": "16384",
        # A client that neither reads its answer nor sends its body is disconnected after this; the
        # default is 3600. The timer does not run while the client waits for the answer.
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",
        # Without a byte for so long no answer will come; the default is never. A request has left
        # the queue by then, and a replica that hangs is replaced long before.
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": "3600",
        # A stopping replica keeps its device at least this long; the default is 30.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        # The proxy of a node that is drained runs on at least this long, so that load balancers
        # have stopped sending to it; the default is 30.
        "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "10",
        # Its requests are done by then: see tandem_serve.pod.drain.
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        # A dead proxy is found after three seconds, not after thirty. One whose manager is slow to
        # answer still serves: with a shorter time-out than Ray's 10 s, a busy node would lose it,
        # and all its streams.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "10",
        # A hung replica has nothing to drain.
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
        # Metrics are one second old at most; the default is ten.
        "RAY_metrics_report_interval_ms": "1000",
        # Ray starts workers as background work, at niceness 15; a replica is not.
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
)

RETRIES: Final = 1_000_000
"""Failed starts of a replica after which Ray gives up: practically never."""

START_COUNT_FILE: Final = "TANDEM_START_COUNT_FILE"
"""The environment variable with the file in which a replica counts its starts until one succeeds;
absent: starts are not counted, and there is no pause between them."""

METRICS_PORT: Final = "TANDEM_METRICS_PORT"
"""The environment variable with the port on which a replica shows its metrics to Prometheus;
absent: only the endpoint shows them."""

METRICS_PATH: Final = "/metrics"
"""Path of the metrics, there and at the endpoint."""


def retry_env(file: str) -> Mapping[str, str]:
    """Environment that makes Ray restart a failing replica again and again, with growing pauses.

    Ray by itself gives up after three starts without a pause; then only a change of the spec makes
    it read a repaired checkpoint, or a volume that was late. `file` is the one in which one replica
    counts.
    """
    return {"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": str(RETRIES), START_COUNT_FILE: file}
