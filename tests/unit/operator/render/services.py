"""InferenceServices and settings that the tests of rendering share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from tandem_operator.ray.token import RayToken
from tandem_operator.render.desired import Desired
from tandem_operator.render.service import render
from tandem_operator.render.settings import OperatorSettings, ReplicaDefaults
from tandem_serve.api.manifest import parse_manifest
from tandem_serve.api.spec import InferenceService

UID = "8a4f2c1e-0000-4000-8000-000000000000"
TOKEN = RayToken("tiny-token-0123abcd", "rays-own")
SETTINGS = OperatorSettings(
    allow_host_path=True, replica=ReplicaDefaults(image="registry.test/replica:1")
)
# A busy machine is no failure.
SMALLEST: Mapping[str, Any] = {"model": {"source": "file:///models/tiny"}}


def inference_service(spec: Mapping[str, Any] = SMALLEST, name: str = "tiny") -> InferenceService:
    """A service; cards are put in afterwards, as the spec wants one for each rank."""
    resources = dict(spec.get("resources", {}))
    cards = {key: resources.pop(key) for key in ("npu", "npuProfile") if key in resources}
    spec = {**spec, "resources": resources}
    return with_cards(_parsed(spec, name), cards.get("npu", 0), cards.get("npuProfile"))


def with_cards(service: InferenceService, npu: int, profile: str | None) -> InferenceService:
    """`service` with cards, whatever its ranks are: what is rendered does not look at them."""
    if not npu:
        return service
    update = {"npu": npu, "npu_profile": profile}
    resources = service.spec.resources.model_copy(update=update)
    spec = service.spec.model_copy(update={"resources": resources})
    return service.model_copy(update={"spec": spec})


def _parsed(spec: Mapping[str, Any], name: str) -> InferenceService:
    document = {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "models"},
        "spec": {**SMALLEST, **spec},
    }
    return parse_manifest(yaml.safe_dump(document), folder=Path("/models"))


def rendered(
    spec: Mapping[str, Any] = SMALLEST,
    under: OperatorSettings = SETTINGS,
    name: str = "tiny",
    *,
    token: RayToken = TOKEN,
) -> Desired:
    return render(inference_service(spec, name), uid=UID, settings=under, token=token)


def one(expected: Desired, kind: str, name: str | None = None) -> Any:
    """The one object of `kind` (and `name`); Any, so that tests can reach into it."""
    (found,) = (
        manifest
        for manifest in expected.objects
        if manifest["kind"] == kind and name in {None, manifest["metadata"]["name"]}
    )
    return found


def cluster_of(expected: Desired) -> Any:
    return one(expected, "RayService")["spec"]["rayClusterConfig"]


def worker_of(expected: Desired) -> Any:
    return cluster_of(expected)["workerGroupSpecs"][0]


def head_pod(expected: Desired) -> Any:
    return cluster_of(expected)["headGroupSpec"]["template"]["spec"]


def worker_pod(expected: Desired) -> Any:
    return worker_of(expected)["template"]["spec"]


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


_schedules = optional(
    cacheBlockSize=st.sampled_from([16, 32, 128]),
    maxPrefillBatchSize=st.integers(0, 10),
    maxPrefillTokens=st.integers(2048, 16384),
    maxBatchSize=st.integers(50, 300),
    maxIterTimes=st.integers(1, 64),
    splitFuse=optional(
        splitChunkTokens=st.integers(1, 64).map(lambda tiles: 16 * tiles),
        splitStartType=st.booleans(),
        splitStartBatchSize=st.integers(0, 20),
    ),
    templateType=st.sampled_from(["Standard", "Mix"]),
)
_resources = st.one_of(
    optional(cpu=st.integers(1, 4), memory=st.sampled_from(["2Gi", "2500M", "3000000001"])),
    st.fixed_dictionaries(
        {
            "npu": st.integers(1, 8),
            "npuProfile": st.sampled_from(["atlas-800i-a2", "cce-ascend-1980"]),
        }
    ),
)
_runtime = optional(
    image=st.sampled_from(["registry.test/other:1", "registry.test/other:2"]),
    imagePullPolicy=st.sampled_from(["Always", "Never"]),
    imagePullSecrets=st.sampled_from([[], ["registry"]]),
    env=st.sampled_from([[], [{"name": "LANG", "value": "C"}], [{"name": "EMPTY"}]]),
    volumes=st.just([{"name": "own", "emptyDir": {"sizeLimit": "1024Mi"}}]),
    nodeSelector=st.sampled_from([{}, {"pool": "a"}]),
    tolerations=st.sampled_from([[], [{"key": "npu", "operator": "Exists"}]]),
)
_targets = st.fixed_dictionaries(
    {"target": st.sampled_from(["50ms", "1.5s"])}, optional={"percentile": st.integers(1, 99)}
)


def _may_have_targets(spec: dict[str, Any]) -> bool:
    """Steps that are all prefill or all decode cannot meet targets."""
    schedule = spec.get("engine", {}).get("schedule", {})
    return not spec.get("slo") or schedule.get("templateType") != "Standard"


specs = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"source": st.sampled_from(["file:///models/a", "pvc://weights/a", "pvc://weights"])},
            optional={"name": st.sampled_from(["a", "b"]), "maxSeqLen": st.integers(1025, 2048)},
        )
    },
    optional={
        "engine": optional(
            dtype=st.sampled_from(["auto", "bfloat16", "float32"]),
            kvCacheDtype=st.sampled_from(["auto", "int8"]),
            npuMemSize=st.sampled_from([-1, 1]),
            schedule=_schedules,
        ),
        "server": optional(
            maxLinkNum=st.integers(1, 4096), apiKeysSecret=st.sampled_from(["keys", "others"])
        ),
        "scaling": optional(minReplicas=st.integers(1, 4)),
        "observability": optional(
            tracing=st.fixed_dictionaries(
                {"endpoint": st.sampled_from(["http://a:4318", "https://b"])},
                optional={"sampleRatio": st.sampled_from([0, 0.5])},
            )
        ),
        "resources": _resources,
        "runtime": _runtime,
        "slo": optional(ttft=_targets, tpot=_targets),
        "progressDeadlineSeconds": st.integers(30, 1000),
    },
).filter(_may_have_targets)
services = specs.map(inference_service)
