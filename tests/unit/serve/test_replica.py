"""The Ray Serve class, without Ray: what it hands to its engine."""

import gc
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
import yaml

from tandem_engine.api.errors import EngineStopped, ReplicaLost
from tandem_serve import replica as replica_module
from tandem_serve.api.document import AppArgs, LiveSettings, ServeOptions
from tandem_serve.api.manifest import parse_manifest
from tandem_serve.api.observability import TracingSettings
from tandem_serve.api.spec import InferenceService
from tandem_serve.replica import Replica
from tandem_serve.testing import FakeEngine
from tests.patience import HANG_S

MANIFEST = """
apiVersion: serving.tandem.dev/v1alpha1
kind: InferenceService
metadata: {name: tiny}
spec:
  model: {source: file:///models/tiny}
  engine: {schedule: {cacheBlockSize: 16}}
"""


def service(**spec: object) -> InferenceService:
    document = yaml.safe_load(MANIFEST)
    document["spec"] |= spec
    return parse_manifest(yaml.safe_dump(document), folder=Path("/"))


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """Serve awaits `__del__`; Python, when it collects the object, would not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Replica, "__del__")
        yield
        gc.collect()


def new_replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    monkeypatch.setattr(replica_module, "configure_logging", lambda: None)
    return Replica(AppArgs.of(service(), ServeOptions()).document())


async def test_live_settings_reach_the_engine_with_the_block_size_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = new_replica(monkeypatch)
    replica._engine = engine = FakeEngine()
    changed = service(
        engine={"schedule": {"maxBatchSize": 7, "noEvict": True}},
        slo={"tpot": {"target": "50ms"}},
    )

    await replica.reconfigure(LiveSettings.of(changed).document())

    ((schedule, slo),) = engine.reconfigured
    assert (schedule.max_batch_size, schedule.no_evict) == (7, True)
    assert schedule.cache_block_size == 16
    assert (slo.ttft_s, slo.tpot_s) == (None, 0.05)


async def test_a_replica_shows_its_metrics_on_the_port_that_its_pod_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = new_replica(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setenv("TANDEM_METRICS_PORT", str(port))
    monkeypatch.setattr(replica_module, "_start_engine", lambda *_: FakeEngine())
    replica.__serve_build_asgi_app__()

    await replica.reconfigure(LiveSettings.of(service()).document())
    assert replica._metrics is not None
    await replica._metrics.bound()
    async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
        response = await client.get(f"http://127.0.0.1:{port}/metrics")
    await replica._metrics.stop()

    assert "fake_requests_total 0" in response.text
    assert "tandem_http_requests_in_flight 0.0" in response.text


async def test_without_that_port_a_replica_listens_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = new_replica(monkeypatch)
    monkeypatch.delenv("TANDEM_METRICS_PORT", raising=False)
    monkeypatch.setattr(replica_module, "_start_engine", lambda *_: FakeEngine())
    replica.__serve_build_asgi_app__()

    await replica.reconfigure(LiveSettings.of(service()).document())

    assert replica._metrics is None


async def test_a_live_change_begins_and_ends_the_traces_of_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = new_replica(monkeypatch)
    replica._engine = FakeEngine()
    make = Mock()
    tracing = replica.__serve_build_asgi_app__().state.http.tracing
    monkeypatch.setattr(tracing, "_make", make)
    traced = service(observability={"tracing": {"endpoint": "http://a:4318", "sampleRatio": 0.5}})

    for desired in (service(), traced, traced):
        await replica.reconfigure(LiveSettings.of(desired).document())

    make.assert_called_once_with(
        TracingSettings(
            endpoint="http://a:4318", sample_ratio=0.5, service_name="tiny", model_name="tiny"
        )
    )
    await replica.reconfigure(LiveSettings.of(service()).document())
    make.return_value.close.assert_called_once_with()
    assert tracing._tracer is None


async def test_a_replica_that_has_lost_a_rank_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = new_replica(monkeypatch)
    replica._engine = engine = FakeEngine()
    ended = threading.Semaphore(0)
    monkeypatch.setattr(replica_module, "end_process", ended.release)
    lost = Mock(side_effect=ReplicaLost("Rank 1 has ended."))
    replica.check_health()
    monkeypatch.setattr(engine, "check_health", lost)

    for _ in range(2):
        with pytest.raises(ReplicaLost, match="Rank 1"):
            replica.check_health()

    assert ended.acquire(timeout=HANG_S)
    assert replica._end is not None
    replica._end.join()
    assert not ended.acquire(blocking=False)


async def test_an_engine_that_has_stopped_leaves_the_end_to_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = new_replica(monkeypatch)
    replica._engine = engine = FakeEngine()
    monkeypatch.setattr(engine, "check_health", Mock(side_effect=EngineStopped("It has stopped.")))

    with pytest.raises(EngineStopped):
        replica.check_health()

    assert replica._end is None
