"""A fake of a replica's metrics: a pod of the tests that Prometheus scrapes in its place.

It hands on what the replica says, but for what it is told to lie about. Prometheus gives its series
the labels of the replica, so only the figures are wrong.
"""

from typing import Any

import httpx

from tests.e2e.kubernetes.harness import NAMESPACE, DeployedService
from tests.e2e.kubernetes.prometheus import INTERVAL_S
from tools.kubernetes import Kubernetes

NAME = "lying-exporter"
PORT = 9464
# Lies by its name in the path: /truth, /nan, /stuck.
_PROGRAM = r"""
import http.server, re, sys, urllib.request
source = sys.argv[1]
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
lie, kept = "truth", b""

class Exporter(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        global lie, kept
        lie, kept = self.path.strip("/"), opener.open(source, timeout=10).read()
        self.answer(b"")

    def do_GET(self):
        text = kept if lie == "stuck" else opener.open(source, timeout=10).read()
        if lie == "nan":
            # Every figure of the engine.
            text = re.sub(rb"(?m)^(tandem_\S+) \S+$", rb"\1 NaN", text)
        self.answer(text)

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

http.server.ThreadingHTTPServer(("0.0.0.0", 9464), Exporter).serve_forever()
"""


class LyingExporter:
    """The fake of the one replica of a service."""

    def __init__(self, kubernetes: Kubernetes, service: DeployedService) -> None:
        """Start it in place of the chart's own PodMonitor, telling the truth."""
        self._kubernetes = kubernetes
        (replica,) = service.pods()
        kubernetes.apply(_pod(replica["status"]["podIP"]))
        kubernetes.kubectl("wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=60s")
        kubernetes.kubectl(
            "delete", "podmonitor", "--all", "--namespace=tandem-system", "--ignore-not-found"
        )
        kubernetes.apply(_monitor(service.name, replica["metadata"]["name"]))

    def tell(self, lie: str) -> None:
        """Say `truth`, `nan` (no figure is a number) or `stuck` (what it says now, for ever)."""
        found = self._kubernetes.get("pod", NAME)
        assert found is not None
        url = f"http://{found['status']['podIP']}:{PORT}/{lie}"
        httpx.put(url, timeout=30, trust_env=False).raise_for_status()

    def remove(self) -> None:
        """Take it away; the chart's PodMonitor is back with the next upgrade of the release."""
        for kind in ("podmonitor", "pod"):
            self._kubernetes.kubectl("delete", kind, NAME, "--ignore-not-found", "--now")


def _pod(replica: str) -> dict[str, Any]:
    # With these labels the policy of the replica lets it in.
    labels = {"app": NAME, "app.kubernetes.io/name": "prometheus"}
    container = {
        "name": "exporter",
        "image": "localhost/tandem/base:1",
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", _PROGRAM, f"http://{replica}:{PORT}/metrics"],
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


def _monitor(service: str, replica: str) -> dict[str, Any]:
    labels = {"namespace": NAMESPACE, "pod": replica, "inference_service": service}
    relabelings = [{"targetLabel": name, "replacement": value} for name, value in labels.items()]
    endpoint = {"port": "metrics", "interval": f"{INTERVAL_S}s", "relabelings": relabelings}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": NAME},
        "spec": {"selector": {"matchLabels": {"app": NAME}}, "podMetricsEndpoints": [endpoint]},
    }
