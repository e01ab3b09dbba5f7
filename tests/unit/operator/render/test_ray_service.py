"""The RayService: what goes to Ray as a document, and what as a cluster."""

import json
from typing import Any

import pytest
import yaml

from tandem_operator.k8s import names
from tandem_operator.ray.token import RayToken
from tandem_operator.render.desired import Desired, RenderError
from tandem_operator.render.ray_service import spec_annotation
from tandem_operator.render.settings import OperatorSettings, ReplicaDefaults
from tandem_operator.status.pending_change import pending_change
from tandem_serve.api.document import ServeOptions, serve_document
from tandem_serve.api.spec import InferenceService
from tests.unit.operator.render.services import (
    SETTINGS,
    TOKEN,
    cluster_of,
    head_pod,
    inference_service,
    one,
    rendered,
    worker_of,
    worker_pod,
)

NPU = {"resources": {"npu": 2, "npuProfile": "atlas-800i-a2", "cpu": 4, "memory": "16Gi"}}


def revision_of(expected: Desired) -> str:
    annotations = worker_of(expected)["template"]["metadata"]["annotations"]
    revision: str = annotations[names.REVISION]
    return revision


def test_kuberay_gets_the_serve_document_as_text() -> None:
    text = one(rendered(), "RayService")["spec"]["serveConfigV2"]

    assert yaml.safe_load(text) == serve_document(inference_service(), ServeOptions())


def test_the_number_of_replicas_is_in_the_document_alone() -> None:
    one_replica = rendered({"scaling": {"minReplicas": 1}})
    three = rendered({"scaling": {"minReplicas": 3}})

    assert cluster_of(one_replica) == cluster_of(three)
    document = yaml.safe_load(one(three, "RayService")["spec"]["serveConfigV2"])
    assert document["applications"][0]["deployments"][0]["num_replicas"] == 3


ZERO = {"scaling": {"minReplicas": 0}}


def test_without_replicas_the_cluster_stays_and_serve_asks_for_none() -> None:
    at_zero, one_replica = rendered(ZERO), rendered()
    (application,) = yaml.safe_load(one(at_zero, "RayService")["spec"]["serveConfigV2"])[
        "applications"
    ]

    assert cluster_of(at_zero) == cluster_of(one_replica)
    assert application["route_prefix"] is None
    (deployment,) = application["deployments"]
    assert "num_replicas" not in deployment
    assert deployment["autoscaling_config"]["min_replicas"] == 0
    assert deployment["autoscaling_config"]["initial_replicas"] == 0


@pytest.mark.parametrize(
    ("scaling", "is_excluded"),
    [
        ({}, True),
        ({"minReplicas": 0}, False),
        ({"minReplicas": 0, "replicas": 3}, False),
        ({"minReplicas": 2}, True),
    ],
)
def test_the_head_answers_for_a_service_that_may_be_without_replicas(
    scaling: dict[str, int], *, is_excluded: bool
) -> None:
    spec = one(rendered({"scaling": scaling}), "RayService")["spec"]

    assert spec.get("excludeHeadPodFromServeSvc", False) is is_excluded


def test_evictions_of_a_service_without_replicas_are_allowed() -> None:
    assert one(rendered(ZERO), "PodDisruptionBudget")["spec"]["minAvailable"] == 0


def test_a_worker_has_room_for_exactly_one_replica() -> None:
    expected = rendered(NPU)
    document = yaml.safe_load(one(expected, "RayService")["spec"]["serveConfigV2"])
    asked = document["applications"][0]["deployments"][0]["ray_actor_options"]

    start = worker_of(expected)["rayStartParams"]

    assert int(start["num-cpus"]) == asked["num_cpus"]
    assert int(start["memory"]) == asked["memory"]
    # The shell of KubeRay's command takes the outer quotes and the backslashes away.
    assert start["resources"] == '"{\\"NPU\\": 2}"'
    assert json.loads(json.loads(start["resources"])) == asked["resources"]


def test_a_service_without_cards_tells_ray_of_none() -> None:
    assert "resources" not in worker_of(rendered())["rayStartParams"]


def test_no_replica_lives_on_the_head() -> None:
    expected = rendered()

    assert cluster_of(expected)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert one(expected, "RayService")["spec"]["excludeHeadPodFromServeSvc"]


def test_ray_asks_for_the_token_of_the_service() -> None:
    expected = rendered()

    assert cluster_of(expected)["authOptions"] == {"mode": "token", "secretName": TOKEN.secret}
    assert expected.token == TOKEN


def test_another_token_makes_another_cluster() -> None:
    """Ray's processes read it when they start."""
    another = RayToken("tiny-token-89abcdef", "another")

    assert revision_of(rendered(token=another)) != revision_of(rendered())


def test_no_object_that_is_rendered_has_the_token_in_it() -> None:
    assert TOKEN.value not in json.dumps(rendered().objects)


def test_the_bounds_of_the_workers_never_follow_the_replicas() -> None:
    group = worker_of(rendered({"scaling": {"minReplicas": 7}}))

    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (0, 0, 1000)


def test_the_autoscaler_runs_like_the_head() -> None:
    expected = rendered({"runtime": {"imagePullPolicy": "Never"}})
    options = cluster_of(expected)["autoscalerOptions"]
    (head,) = head_pod(expected)["containers"]

    assert options["version"] == "v2"
    for field in ("imagePullPolicy", "env", "volumeMounts", "securityContext"):
        assert options[field] == head[field]


def test_clients_call_a_service_of_the_services_name() -> None:
    endpoint = one(rendered(), "RayService")["spec"]["serveService"]

    assert endpoint["metadata"]["name"] == "tiny"
    (port,) = endpoint["spec"]["ports"]
    assert (port["name"], port["port"]) == ("serve", 8000)
    assert names.endpoint_url("tiny", "models") == "http://tiny.models.svc:8000"


def test_the_version_stands_in_an_annotation_without_the_number_of_replicas() -> None:
    annotations = one(rendered(), "RayService")["metadata"]["annotations"]

    expected = inference_service().resolved()["spec"]
    del expected["scaling"]
    assert json.loads(annotations[names.SPEC]) == expected


def test_an_annotation_has_room_for_the_largest_manifest() -> None:
    """Kubernetes takes 256 KiB of annotations."""
    env = [{"name": "A", "value": "\u00e4" * 32768}, {"name": "B", "value": "b" * 32000}]
    volumes = [
        {"name": f"v{number}", "configMap": {"name": "c" * 253, "items": [{"key": "k" * 4000}]}}
        for number in range(64)
    ]
    expected = rendered({"runtime": {"env": env, "volumes": volumes}})

    annotations = one(expected, "RayService")["metadata"]["annotations"]

    assert sum(len(key) + len(value) for key, value in annotations.items()) < 16_384


def test_a_long_value_that_changes_is_still_a_change() -> None:
    def asked(value: str) -> InferenceService:
        return inference_service({"runtime": {"env": [{"name": "A", "value": value}]}})

    def written(value: str) -> dict[str, Any]:
        return {"metadata": {"annotations": {names.SPEC: spec_annotation(asked(value))}}}

    change = pending_change(asked("a" * 9999 + "b"), written("a" * 10_000))

    assert change
    assert change.fields == ("spec.runtime.env",)
    assert pending_change(asked("a" * 10_000), written("a" * 10_000)) is None
    whole = json.dumps(asked("a" * 10_000).resolved()["spec"])
    before = {"metadata": {"annotations": {names.SPEC: whole}}}
    assert pending_change(asked("a" * 10_000), before) is None, "as earlier versions wrote it"


def test_other_settings_make_other_pods() -> None:
    other = SETTINGS.model_copy(
        update={"replica": ReplicaDefaults(image="registry.test/replica:2")}
    )

    assert cluster_of(rendered()) != cluster_of(rendered(under=other))


def test_tolerations_alone_change_the_revision() -> None:
    """KubeRay leaves them out when it compares two clusters."""
    borne = {"runtime": {"tolerations": [{"key": "npu", "operator": "Exists"}]}}

    assert revision_of(rendered(borne)) != revision_of(rendered())


def test_cards_bring_the_profile_of_their_nodes() -> None:
    expected = rendered(NPU)
    pod = worker_pod(expected)

    assert pod["nodeSelector"]["accelerator-type"] == "module-910b-8"
    limits = pod["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "5", "memory": "17Gi", "huawei.com/Ascend910": "2"}
    # The head needs no card, but a node whose architecture is the image's.
    assert head_pod(expected)["nodeSelector"] == {"kubernetes.io/arch": "arm64"}


def test_a_profile_adds_to_the_workers_alone() -> None:
    profile = {
        "resource_name": "example.com/card",
        "cards": 2,
        "env": [{"name": "DRIVER", "value": "on"}],
        "volumes": [{"name": "driver", "hostPath": {"path": "/driver"}}],
        "volume_mounts": [{"name": "driver", "mountPath": "/driver"}],
        "tolerations": [{"key": "cards", "operator": "Exists"}],
        "scheduler_name": "volcano",
    }
    settings = OperatorSettings.model_validate(
        {
            "allow_host_path": True,
            "replica": {"image": "i"},
            "npu_profiles": {"mine": profile},
            "default_npu_profile": "mine",
        }
    )

    expected = rendered({"resources": {"npu": 2}}, settings)

    worker, head = worker_pod(expected), head_pod(expected)
    assert worker["schedulerName"] == "volcano"
    assert worker["tolerations"] == [{"key": "cards", "operator": "Exists"}]
    assert {"name": "DRIVER", "value": "on"} in worker["containers"][0]["env"]
    assert {"name": "driver", "hostPath": {"path": "/driver"}} in worker["volumes"]
    assert "schedulerName" not in head
    assert "tolerations" not in head
    assert {"name": "driver", "hostPath": {"path": "/driver"}} not in head["volumes"]


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        pytest.param({"npu": 1}, "neither .*npuProfile nor .*set npuProfile to one of", id="none"),
        pytest.param(
            {"npu": 1, "npuProfile": "a9"},
            "'a9' is not one of .*allowed: .*atlas-800i-a2",
            id="new",
        ),
        pytest.param(
            {"npu": 9, "npuProfile": "atlas-800i-a2"},
            "9 is more than a node of npuProfile 'atlas-800i-a2' has, 8; .*ask for at most 8",
            id="too many",
        ),
    ],
)
def test_unsatisfiable_numbers_of_cards_are_rejected(
    resources: dict[str, object], said: str
) -> None:
    with pytest.raises(RenderError, match=said):
        rendered({"resources": resources}, SETTINGS)
