"""The CRD in a real API server: what it accepts, what it refuses and in which words."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from kubernetes.client import ApiException, CustomObjectsApi
from kubernetes.config import new_client_from_config

from tandem_operator.crd.parse import parse_object
from tandem_operator.crd.rules import RULES
from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tandem_serve.api.manifest import ManifestError
from tests.unit.operator.crd.forms import Bad, manifest
from tests.unit.operator.crd.manifests import BAD, GOOD
from tests.unit.operator.crd.random_manifests import documents
from tests.unit.operator.crd.rule_texts import name_of, rules_in
from tools.cluster import Cluster, ClusterError

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
Store = Callable[[dict[str, Any]], tuple[dict[str, Any] | None, str]]
STATUS = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-21T14:00:00Z",
            "reason": "Loading",
            "message": "1 of 2 replicas loads its weights",
        }
    ],
    "url": "http://tiny.default.svc:8000",
    "model": "tandem-tiny",
    "reason": "Loading",
    "message": "1 of 2 replicas loads its weights",
    "replicas": {"desired": 2, "ready": 1, "summary": "1/2"},
    "selector": "serving.tandem.dev/service=tiny",
    "rayCluster": "tiny-abcde",
    "pendingChange": {"class": "Replace", "fields": ["spec.engine.dtype"]},
    "microBatch": {
        "replicas": 2,
        "prefillReplicas": 2,
        "decodeReplicas": 0,
        "overlap": 0.87,
        "kvBlocks": 40,
        "kvBlocksOf": 800,
        "measuredAt": "2026-11-21T14:01:00Z",
        "message": "steps with prefill are cut on 2 of 2 replicas",
    },
    "scaling": {
        "mode": "Auto",
        "desiredReplicas": 2,
        "supersededReplicas": 1,
        "coldStartSeconds": 41.2,
        "decisions": [
            {
                "firstTime": "2026-11-21T14:00:00Z",
                "lastTime": "2026-11-21T14:01:00Z",
                "replicas": 2,
                "recommended": 3,
                "reason": "TTFTAboveTarget",
                "message": "P90 of TTFT is 2.1 s, above its target of 1.5 s",
                "inputs": {"arrivalRate": 3.25},
            }
        ],
    },
}


@pytest.fixture(scope="module")
def api(crds: Cluster) -> Cluster:
    """The cluster with the CRD."""
    return crds


@pytest.fixture
def tiny(api: Cluster) -> Iterator[str]:
    """The name of a service that is there."""
    api.kubectl("create", "-f", "-", input=json.dumps(manifest()))
    yield "tiny"
    api.kubectl("delete", "isvc", "tiny")


def create(api: Cluster, document: dict[str, Any]) -> dict[str, Any]:
    """`document` as the API server would hold it; nothing is kept."""
    said = api.kubectl(
        "create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(document)
    )
    stored: dict[str, Any] = json.loads(said)
    return stored


def refusal(api: Cluster, document: dict[str, Any]) -> str:
    """Return kubectl's message about a manifest that is refused."""
    with pytest.raises(ClusterError, match="InferenceService") as caught:
        api.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(document))
    return str(caught.value)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.fault)
def test_a_bad_manifest_is_refused_with_field_and_reason(api: Cluster, bad: Bad) -> None:
    said = refusal(api, manifest(bad.changes))

    faults = re.findall(rf"{re.escape(bad.field)}: (.*)", said)
    assert any(bad.words in fault for fault in faults), said


def test_several_faults_are_named_at_once(api: Cluster) -> None:
    said = refusal(
        api,
        manifest({"spec.model.source": "/models/tiny", "spec.engine.schedule.cacheBlockSize": 24}),
    )

    assert "spec.model.source: " in said
    assert "spec.engine.schedule.cacheBlockSize: " in said


@pytest.mark.parametrize(
    "path",
    [
        "spec.replicas",
        "spec.engine.schedule.splitfuse",
        "spec.model.path",
        "spec.resources.gpu",
        # A password in clear.
        "spec.runtime.gcsFaultToleranceOptions.redisPassword.value",
    ],
)
def test_an_unknown_field_is_refused_by_its_name(api: Cluster, path: str) -> None:
    with pytest.raises(ClusterError, match=f'unknown field "{re.escape(path)}"'):
        api.kubectl("apply", "-f", "-", input=json.dumps(manifest({path: 1})))


def test_a_value_with_a_line_break_does_not_hide_the_reason(api: Cluster) -> None:
    said = refusal(api, manifest({"spec.model.source": "hf://a\nb"}))

    assert "'…' is not a source that Kubernetes can mount; write file:///absolute/path" in said


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD)
def test_a_good_manifest_means_the_same_with_its_defaults(
    api: Cluster, changes: dict[str, Any]
) -> None:
    stored = create(api, manifest(changes))

    assert meaning(stored) == meaning(manifest(changes))


def meaning(document: dict[str, Any]) -> dict[str, Any]:
    """A service's spec with every default that can be known."""
    spec: dict[str, Any] = parse_object(document).resolved()["spec"]
    return spec


def test_defaults_are_seen_in_the_object(api: Cluster) -> None:
    spec = create(api, manifest())["spec"]

    assert spec["scaling"] == {
        "mode": "Manual",
        "minReplicas": 1,
        "behavior": {
            "scaleUp": {"stabilizationWindowSeconds": 30, "maxStep": 4},
            "scaleDown": {"stabilizationWindowSeconds": 60, "maxStep": 1},
        },
    }
    assert spec["resources"] == {"cpu": 1, "memory": "4Gi", "npu": 0}
    assert spec["engine"]["schedule"]["splitFuse"]["splitChunkTokens"] == 512
    assert "maxPrefillBatchSize" not in spec["engine"]["schedule"]


def test_null_means_absent(api: Cluster) -> None:
    document = manifest()
    document["spec"] |= {"scaling": None, "engine": {"schedule": {"maxPrefillTokens": None}}}
    document["spec"]["model"]["maxSeqLen"] = None

    assert meaning(create(api, document)) == meaning(manifest())


def test_the_api_server_and_the_operator_agree(api: Cluster) -> None:
    """Over many manifests: both refuse the same, and what both take means the same."""
    verdicts: Counter[bool] = Counter()

    @settings(max_examples=600, deadline=None, derandomize=True, database=None)
    @given(documents())
    def agree(store: Store, document: dict[str, Any]) -> None:
        stored, _ = store(document)
        verdicts[stored is not None] += 1
        if stored is None:
            with pytest.raises(ManifestError):
                parse_object(document)
        else:
            assert meaning(stored) == meaning(document)

    with storing(api) as store:
        agree(store)

    assert min(verdicts[True], verdicts[False]) > 80, verdicts


def test_the_api_server_refuses_by_every_rule(api: Cluster) -> None:
    """The operator's own parser does so, too, by the table alone."""
    with storing(api) as store:
        said = [store(manifest(bad.changes))[1] for bad in BAD]

    assert set().union(*map(rules_in, said)) == {name_of(rule) for rule in RULES}


@contextmanager
def storing(api: Cluster) -> Iterator[Store]:
    """Objects as the API server would hold them, None with its message for one that it refuses."""
    kind = INFERENCE_SERVICE
    with new_client_from_config(str(api.kubeconfig)) as client:
        objects = CustomObjectsApi(client)

        def store(document: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
            namespace = document["metadata"].get("namespace", "default")
            try:
                stored = objects.create_namespaced_custom_object(
                    kind.group, kind.version, namespace, kind.plural, document, dry_run="All"
                )
            except ApiException as refused:
                if json.loads(refused.body or "{}").get("reason") != "Invalid":
                    raise
                return None, str(json.loads(refused.body or "{}").get("message"))
            assert isinstance(stored, dict)
            return stored, ""

        yield store


def test_explain_describes_every_field_of_split_fuse(api: Cluster) -> None:
    said = " ".join(api.kubectl("explain", "isvc.spec.engine.schedule.splitFuse").split())

    assert "SplitFuse, the way templateType Mix shares steps." in said
    assert "splitChunkTokens <integer>" in said
    assert "Tokens of one step, decodes and prompt chunks together; a multiple of 16." in said
    assert "Default: 16, or maxBatchSize where that is less, or 0 with an SLO." in said
    assert "<no description>" not in api.kubectl("explain", "isvc", "--recursive=false")


def test_get_shows_state_and_reason(api: Cluster, tiny: str) -> None:
    patch_status(api, tiny)

    header, row = api.kubectl("get", "isvc", tiny).splitlines()
    wide = api.kubectl("get", "isvc", tiny, "-o", "wide")

    assert header.split() == ["NAME", "READY", "REPLICAS", "MODEL", "URL", "REASON", "AGE"]
    assert row.split()[:-1] == [
        "tiny",
        "False",
        "1/2",
        "tandem-tiny",
        "http://tiny.default.svc:8000",
        "Loading",
    ]
    assert "1 of 2 replicas loads its weights" in wide
    assert "Replace" in wide


def patch_status(api: Cluster, name: str) -> None:
    patch = json.dumps({"status": STATUS})
    api.kubectl("patch", "isvc", name, "--subresource=status", "--type=merge", "-p", patch)


def test_the_whole_status_is_kept(api: Cluster, tiny: str) -> None:
    patch_status(api, tiny)

    assert json.loads(api.kubectl("get", "isvc", tiny, "-o", "json"))["status"] == STATUS


def test_who_writes_the_spec_does_not_write_the_status(api: Cluster, tiny: str) -> None:
    api.kubectl("patch", "isvc", tiny, "--type=merge", "-p", json.dumps({"status": STATUS}))

    assert "status" not in json.loads(api.kubectl("get", "isvc", tiny, "-o", "json"))


def test_scale_sets_the_replicas_and_finds_the_pods(api: Cluster, tiny: str) -> None:
    patch_status(api, tiny)

    api.kubectl("scale", "isvc", tiny, "--replicas=3")

    spec = json.loads(api.kubectl("get", "isvc", tiny, "-o", "json"))["spec"]
    scale = json.loads(api.kubectl("get", "isvc", tiny, "--subresource=scale", "-o", "json"))
    assert spec["scaling"]["replicas"] == 3
    assert scale["spec"]["replicas"] == 3
    assert scale["status"] == {"replicas": 1, "selector": STATUS["selector"]}


def test_scale_to_zero_needs_a_minimum_of_zero(api: Cluster, tiny: str) -> None:
    with pytest.raises(ClusterError, match="replicas 0 is below minReplicas 1; set minReplicas: 0"):
        api.kubectl("scale", "isvc", tiny, "--replicas=0")
    patch = {"spec": {"scaling": {"minReplicas": 0}}}
    api.kubectl("patch", "isvc", tiny, "--type=merge", "-p", json.dumps(patch))

    api.kubectl("scale", "isvc", tiny, "--replicas=0")

    scale = json.loads(api.kubectl("get", "isvc", tiny, "--subresource=scale", "-o", "json"))
    assert scale["spec"].get("replicas", 0) == 0


@pytest.mark.parametrize("category", ["all", "tandem"])
def test_it_belongs_to_its_categories(api: Cluster, tiny: str, category: str) -> None:
    assert f"inferenceservice.serving.tandem.dev/{tiny}" in api.kubectl(
        "get", category, "-o", "name"
    )
