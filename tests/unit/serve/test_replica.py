"""The Ray Serve class, without Ray: what it hands to its engine."""

from pathlib import Path

import pytest
import yaml

from tandem_serve import replica as replica_module
from tandem_serve.api.document import AppArgs, LiveSettings, ServeOptions
from tandem_serve.api.manifest import parse_manifest
from tandem_serve.api.spec import InferenceService
from tandem_serve.replica import Replica
from tandem_serve.testing import FakeEngine

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


async def test_live_settings_reach_the_engine_with_the_block_size_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Serve awaits it; Python, when it collects the object, would not.
    monkeypatch.delattr(Replica, "__del__")
    monkeypatch.setattr(replica_module, "configure_logging", lambda: None)
    replica = Replica(AppArgs.of(service(), ServeOptions()).document())
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
