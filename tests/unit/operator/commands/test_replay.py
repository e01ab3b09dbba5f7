"""`tandem replay` against a stand-in for the API server and a fake Prometheus."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.unit.operator.autoscaler.fake_prometheus import HEALTHY, of_service, shared_out, text_of
from tests.unit.operator.commands.api_server import ApiServer, error_of, of_namespace, run, service

pytestmark = pytest.mark.usefixtures("kubeconfig")

SCALING = {"mode": "Manual", "minReplicas": 1, "maxReplicas": 8}


class FakePrometheus(ThreadingHTTPServer):
    """Answers range queries: one replica, and a load that quadruples half-way through."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.queries: list[dict[str, str]] = []
        self.is_empty = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        fake = self.server
        assert isinstance(fake, FakePrometheus)
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(text).items()}
        fake.queries.append(form)
        lines = [] if fake.is_empty else list(matrix(form))
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": lines}})
        self.send_response(200 if self.path == "/api/v1/query_range" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def matrix(form: dict[str, str]) -> Iterator[dict[str, Any]]:
    start, end, step = (float(form[name]) for name in ("start", "end", "step"))
    moments = [start + number * step for number in range(int((end - start) / step) + 1)]
    half = moments[len(moments) // 2]

    def line(values: Any, **labels: str) -> dict[str, Any]:
        return {"metric": labels, "values": [[at, text_of(values(at))] for at in moments]}

    if "autoscaler_desired_replicas" in form["query"]:
        yield line(lambda _: 1.0, signal="desired")
        yield line(lambda _: 1.0, signal="ready")
        return
    for name, value in of_service(HEALTHY).items():
        yield line(lambda _, value=value: value, signal=name)
    for name, value in shared_out(HEALTHY, 1).items():
        if name == "arrival_rate":
            yield line(lambda at: 7.0 if at < half else 28.0, signal=f"pod_{name}", pod="tiny-a")
        else:
            yield line(lambda _, value=value: value, signal=f"pod_{name}", pod="tiny-a")
    yield line(lambda at: at, signal="evaluated_at")
    for name in ("scraped_at", "exposed_at"):
        yield line(lambda at: at - 5, signal=f"pod_{name}", pod="tiny-a")
    yield line(lambda _: 100.0, signal="pod_received", pod="tiny-a")
    yield line(lambda _: 1.0, signal="pod_started_at", pod="tiny-a")


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    with FakePrometheus() as fake:
        thread = Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield fake
        fake.shutdown()
        thread.join()


@pytest.fixture
def tiny(server: ApiServer) -> dict[str, Any]:
    found = service("tiny", uid="u-1")
    found |= {"apiVersion": "serving.tandem.dev/v1alpha1", "kind": "InferenceService"}
    found["spec"] |= {"slo": {"ttft": {"target": "1.5s"}}, "scaling": SCALING}
    server.lists[of_namespace("models")] = [found]
    return found


@pytest.mark.usefixtures("tiny")
def test_a_replay_shows_what_would_have_run(prometheus: FakePrometheus) -> None:
    done = run("replay", "tiny", "--since", "30m", "--prometheus", prometheus.url)

    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["TIME", "RAN", "REPLAY", "REQ/S", "CAPACITY", "REASON"]
    assert any(line.split()[1:3] == ["1", "4"] for line in lines), "28 requests/s times 1.25"
    assert lines[-1].startswith("121 moments. Replica-hours: 0.50 ran, ")
    assert 'namespace="models",inference_service="tiny"' in prometheus.queries[0]["query"]


@pytest.mark.usefixtures("tiny")
def test_it_is_json_and_a_picture(prometheus: FakePrometheus, tmp_path: Path) -> None:
    picture = tmp_path / "replay.png"

    done = run(
        "replay", "tiny", "--since", "30m", "--json", "--plot", str(picture),
        "--prometheus", prometheus.url,
    )  # fmt: skip

    found = json.loads(done.stdout)
    assert found["summary"]["moments"] == len(found["moments"]) == 121
    assert found["summary"]["overloaded_s_ran"] > found["summary"]["overloaded_s_replayed"] > 0
    assert found["moments"][-1]["inputs"]["arrival_rate"] == 28.0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tiny")
def test_another_manifest_is_tried(prometheus: FakePrometheus, tmp_path: Path) -> None:
    manifest = tmp_path / "other.yaml"
    manifest.write_text(
        "apiVersion: serving.tandem.dev/v1alpha1\nkind: InferenceService\n"
        "metadata: {name: tiny}\nspec:\n  model: {source: file:///m}\n"
        "  slo: {ttft: {target: 1.5s}}\n  scaling: {maxReplicas: 2}\n"
    )

    done = run(
        "replay", "tiny", "--since", "30m", "--json", "-f", str(manifest),
        "--prometheus", prometheus.url,
    )  # fmt: skip

    assert max(moment["replayed"] for moment in json.loads(done.stdout)["moments"]) == 2


@pytest.mark.usefixtures("tiny")
def test_a_long_span_is_asked_for_in_parts(prometheus: FakePrometheus) -> None:
    done = run("replay", "tiny", "--since", "12h", "--prometheus", prometheus.url)

    assert done.exit_code == 0, done.stderr
    spans = [(float(query["start"]), float(query["end"])) for query in prometheus.queries[::2]]
    assert len(spans) == 3
    assert all(end - start <= 999 * 15 for start, end in spans)
    assert all(one[1] + 15 == after[0] for one, after in pairwise(spans))


def test_errors_say_what_to_do(
    server: ApiServer, tiny: dict[str, Any], prometheus: FakePrometheus
) -> None:
    at = ("--prometheus", prometheus.url)
    prometheus.is_empty = True
    assert error_of("replay", "tiny", *at) == (
        f"{prometheus.url} has no figures of service 'tiny' in namespace models for the last 6h; "
        "check that it scrapes the replicas"
    )
    assert error_of("replay", "tiny", "--since", "6 hours", *at).startswith(
        "--since '6 hours' is not a span of time; write a number and s, m, h or d"
    )
    assert error_of("replay", "tiny", "--since", "99d", "--step", "1", *at).endswith(
        "give a larger --step"
    )
    assert "gives no answer" in error_of("replay", "tiny", "--prometheus", "http://127.0.0.1:1")
    assert "is not the address of a Prometheus" in error_of(
        "replay", "tiny", "--prometheus", "localhost:9090"
    )
    window = {"start": "0 8 * * *", "duration": "1h", "minReplicas": 2, "timeZone": "Mars/Base"}
    tiny["spec"]["scaling"] = {**SCALING, "schedule": [window]}
    server.lists[of_namespace("models")] = [tiny]
    assert "'Mars/Base' is not a known time zone" in error_of("replay", "tiny", *at)
    del tiny["spec"]["scaling"]
    server.lists[of_namespace("models")] = [tiny]
    assert "has no spec.scaling.maxReplicas; add it" in error_of("replay", "tiny", *at)
    del tiny["spec"]["slo"]
    assert "has no target to hold; add spec.slo" in error_of("replay", "tiny", *at)
