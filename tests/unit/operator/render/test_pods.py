"""The pods: hardened, drained, and with the volumes that three hands add."""

from typing import Any

import pytest

from tandem_operator.k8s import names
from tandem_operator.render.desired import HostPathNotAllowed, RenderError
from tandem_operator.render.service import render
from tandem_operator.render.settings import OperatorSettings
from tandem_operator.render.volumes import HOME, TEMPORARY
from tandem_serve.api.ray_env import RAY_ENV
from tests.unit.operator.render.services import (
    SETTINGS,
    TOKEN,
    UID,
    cluster_of,
    head_pod,
    inference_service,
    rendered,
    worker_of,
    worker_pod,
)


def settings_with(**replica: Any) -> OperatorSettings:
    return OperatorSettings.model_validate(
        {"allow_host_path": True, "replica": {"image": "i", **replica}}
    )


def environment(pod: Any) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in pod["containers"][0]["env"]}


def mount_at(pod: Any, path: str) -> Any:
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == path)
    (volume,) = (v for v in pod["volumes"] if v["name"] == mount["name"])
    return mount, volume


@pytest.fixture(params=[head_pod, worker_pod], ids=["head", "worker"])
def pod(request: pytest.FixtureRequest) -> Any:
    return request.param(rendered())


def test_a_pod_is_hardened(pod: Any) -> None:
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["enableServiceLinks"] is False


def test_ray_can_write_where_it_must(pod: Any) -> None:
    for path in (TEMPORARY, environment(pod)["HOME"]):
        mount, volume = mount_at(pod, path)
        assert "readOnly" not in mount
        assert volume["emptyDir"] == {}


def test_only_the_head_may_speak_with_kubernetes() -> None:
    expected = rendered()

    assert worker_pod(expected)["automountServiceAccountToken"] is False
    # Its autoscaler changes the RayCluster, by the account that KubeRay makes.
    assert "automountServiceAccountToken" not in head_pod(expected)


def test_every_container_hears_that_its_pod_ends() -> None:
    """As process 1 the autoscaler and a worker that waits for the head would not."""
    assert head_pod(rendered())["shareProcessNamespace"] is True
    assert worker_pod(rendered())["shareProcessNamespace"] is True


def test_a_worker_waits_for_its_head_hardened_and_with_bounds_of_its_own() -> None:
    """`ray start` gives up on a head that comes later, and KubeRay may be told not to wait."""
    pod = worker_pod(rendered())
    (container,), (await_head,) = pod["containers"], pod["initContainers"]

    assert await_head["command"][-1] == "6379"
    assert await_head["securityContext"] == container["securityContext"]
    assert await_head["image"] == container["image"]
    assert set(await_head["resources"]["limits"]) == {"cpu", "memory"}
    assert "initContainers" not in head_pod(rendered())


def test_a_pod_is_ready_when_haproxy_says_so() -> None:
    (container,) = worker_pod(rendered())["containers"]

    assert container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": 8000}


def test_a_pod_is_killed_for_what_ray_says_and_not_for_a_model_that_loads_long() -> None:
    (container,) = worker_pod(rendered())["containers"]

    assert "startupProbe" not in container
    asked = container["livenessProbe"]["httpGet"]
    assert (asked["path"], asked["port"]) == ("/api/local_raylet_healthz", 52365)
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] <= 60


def test_a_pod_ends_its_requests_before_ray_ends(pod: Any) -> None:
    command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]

    assert command[:3] == ["python", "-m", "tandem_serve.pod.drain"]
    assert pod["terminationGracePeriodSeconds"] > 600


def test_rays_autoscaler_finds_the_restart_policy_that_it_asks_for(pod: Any) -> None:
    assert pod["restartPolicy"] == "Never"


def test_kubernetes_keeps_what_a_replica_may_use() -> None:
    expected = rendered({"resources": {"cpu": 4, "memory": "8Gi"}})

    (container,) = worker_pod(expected)["containers"]

    # A replica and, beside it, Ray.
    assert container["resources"]["limits"] == {"cpu": "5", "memory": "9Gi"}
    assert container["resources"]["requests"] == {"cpu": "5", "memory": "9Gi"}


def test_a_development_cluster_shares_its_cpus_but_no_memory() -> None:
    expected = rendered(
        {"resources": {"cpu": 1}},
        settings_with(cpu_overcommit=20, head_resources={"cpu": "2", "memory": "2Gi"}),
    )

    for spec in (worker_pod(expected), head_pod(expected)):
        resources = spec["containers"][0]["resources"]
        assert (resources["requests"]["cpu"], resources["limits"]["cpu"]) == ("100m", "2")
        assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_a_replica_shows_its_metrics_on_a_named_port() -> None:
    expected = rendered()
    (worker,) = worker_pod(expected)["containers"]
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}

    assert ports == {"metrics": 9464, "ray-metrics": 8080, "serve": 8000}
    assert environment(worker_pod(expected))["TANDEM_METRICS_PORT"] == "9464"
    assert "TANDEM_METRICS_PORT" not in environment(head_pod(expected))


def test_kuberay_finds_the_name_that_it_looks_for_on_the_head() -> None:
    (head,) = head_pod(rendered())["containers"]

    assert {"name": "metrics", "containerPort": 8080, "protocol": "TCP"} in head["ports"]


def test_prometheus_annotations_are_on_the_replicas_where_the_settings_say_so() -> None:
    def annotations(settings: OperatorSettings) -> dict[str, str]:
        found: dict[str, str] = worker_of(rendered(under=settings))["template"]["metadata"][
            "annotations"
        ]
        return found

    assert annotations(SETTINGS).keys() == {names.REVISION}
    annotated = annotations(settings_with(prometheus_annotations=True))
    assert annotated.pop(names.REVISION) != annotations(SETTINGS)[names.REVISION]
    assert annotated == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9464",
        "prometheus.io/path": "/metrics",
    }


def test_kuberays_own_label_is_left_alone() -> None:
    """The Service of the head selects by it."""
    templates = [
        cluster_of(rendered())["headGroupSpec"]["template"],
        worker_of(rendered())["template"],
    ]

    for template, component in zip(templates, ["head", "worker"], strict=True):
        labels = template["metadata"]["labels"]
        assert "app.kubernetes.io/name" not in labels
        assert labels[names.SERVICE] == "tiny"
        assert labels[names.COMPONENT] == component


def test_every_ray_process_has_the_profile(pod: Any) -> None:
    assert RAY_ENV.items() <= environment(pod).items()


def test_the_manifest_has_the_last_word_on_variables() -> None:
    settings = settings_with(env=[{"name": "LANG", "value": "C"}, {"name": "A", "value": "1"}])
    expected = rendered({"runtime": {"env": [{"name": "LANG", "value": "de"}]}}, settings)

    found = environment(worker_pod(expected))

    assert (found["LANG"], found["A"]) == ("de", "1")


def test_a_folder_of_the_node_is_mounted_at_its_own_path() -> None:
    mount, volume = mount_at(worker_pod(rendered()), "/models/tiny")

    assert mount["readOnly"]
    assert volume["hostPath"] == {"path": "/models/tiny", "type": "Directory"}


def test_a_claim_is_mounted_read_only_below_the_folder_of_claims() -> None:
    expected = rendered({"model": {"source": "pvc://weights/llama/7b"}})

    mount, volume = mount_at(worker_pod(expected), "/mnt/claims/weights")

    assert mount["readOnly"]
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}


def test_api_keys_are_files_that_the_replicas_user_can_read() -> None:
    expected = rendered({"server": {"apiKeysSecret": "keys"}})

    mount, volume = mount_at(worker_pod(expected), "/etc/tandem/api-keys")

    assert mount["readOnly"]
    assert volume["secret"] == {"secretName": "keys", "defaultMode": 0o440}
    assert worker_pod(expected)["securityContext"]["fsGroup"] == 1000


def test_the_head_sees_neither_model_nor_keys() -> None:
    expected = rendered({"server": {"apiKeysSecret": "keys"}})

    (container,) = head_pod(expected)["containers"]

    paths = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert paths == {TEMPORARY, HOME}


def test_pull_secrets_of_settings_and_manifest_add_up() -> None:
    expected = rendered(
        {"runtime": {"imagePullSecrets": ["mine", "all"]}},
        settings_with(image_pull_secrets=["all"]),
    )

    assert head_pod(expected)["imagePullSecrets"] == [{"name": "all"}, {"name": "mine"}]


def test_what_kubernetes_would_drop_is_dropped_from_volumes() -> None:
    runtime = {
        "volumes": [{"name": "own", "configMap": {"name": "c", "items": [], "optional": False}}],
        "volumeMounts": [{"name": "own", "mountPath": "/own", "subPath": "", "readOnly": False}],
    }

    mount, volume = mount_at(worker_pod(rendered({"runtime": runtime})), "/own")

    assert mount == {"name": "own", "mountPath": "/own"}
    assert volume == {"name": "own", "configMap": {"name": "c"}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            {
                "model": {"source": "file:///models/tiny"},
                "runtime": {"volumes": [{"name": "site", "emptyDir": {}}]},
            },
            "two volumes are called 'site', one of the operator's settings, one of spec.runtime",
            id="name",
        ),
        pytest.param(
            {"runtime": {"volumes": [{"name": "ray-logs", "emptyDir": {}}]}},
            "two volumes are called 'ray-logs', one of KubeRay",
            id="KubeRay's name",
        ),
        pytest.param(
            {
                "runtime": {
                    "volumes": [{"name": "own", "emptyDir": {}}],
                    "volumeMounts": [{"name": "own", "mountPath": "/models/tiny"}],
                }
            },
            "two volumes are mounted at '/models/tiny', one by spec.model.source, one by spec.runt",
            id="path",
        ),
    ],
)
def test_volumes_that_do_not_fit_together_are_refused(spec: dict[str, Any], said: str) -> None:
    settings = settings_with(volumes=[{"name": "site", "emptyDir": {}}])

    with pytest.raises(RenderError, match=said):
        rendered(spec, settings)


@pytest.mark.parametrize(
    ("replica", "said"),
    [
        pytest.param(
            {"volume_mounts": [{"name": "nowhere", "mountPath": "/x"}]},
            "mounts the volume 'nowhere', which is not defined; add it .*tandem-tmp",
            id="unknown volume",
        ),
        pytest.param(
            {"volumes": [{"emptyDir": {}}]},
            "the operator's settings has a volume without name; give it one",
            id="no name",
        ),
    ],
)
def test_volumes_of_the_settings_that_do_not_fit_are_refused(
    replica: dict[str, Any], said: str
) -> None:
    with pytest.raises(RenderError, match=said):
        rendered(under=settings_with(**replica))


RUNTIME = {
    "volumes": [{"name": "own", "persistentVolumeClaim": {"claimName": "one-node-at-a-time"}}],
    "volumeMounts": [{"name": "own", "mountPath": "/own"}],
    "nodeSelector": {"cards": "many", "kubernetes.io/arch": "arm64"},
    "tolerations": [{"key": "cards", "operator": "Exists"}],
}


def test_volumes_and_nodes_of_the_manifest_are_for_the_replicas_alone() -> None:
    expected = rendered({"runtime": RUNTIME})

    worker, head = worker_pod(expected), head_pod(expected)
    assert mount_at(worker, "/own")[1]["persistentVolumeClaim"]
    assert worker["nodeSelector"] == RUNTIME["nodeSelector"]
    assert worker["tolerations"] == RUNTIME["tolerations"]
    autoscaler = cluster_of(expected)["autoscalerOptions"]
    for mounts in (head["containers"][0]["volumeMounts"], autoscaler["volumeMounts"]):
        assert {one["mountPath"] for one in mounts} == {TEMPORARY, HOME}
    assert {one["name"] for one in head["volumes"]} == {"tandem-tmp", "tandem-home"}
    assert "tolerations" not in head
    # One image for both.
    assert head["nodeSelector"] == {"kubernetes.io/arch": "arm64"}


CLOSED = SETTINGS.model_copy(update={"allow_host_path": False})
HOST = [{"name": "root", "hostPath": {"path": "/"}}]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"model": {"source": "file:///etc"}},
            "spec.model.source 'file:///etc' is a folder of the node, and .* do not allow those; "
            r"name a volume claim \(pvc://claim/path\), or have settings.allowHostPath set",
        ),
        (
            {"model": {"source": "pvc://weights"}, "runtime": {"volumes": HOST}},
            r"spec.runtime.volumes: 'root' is a folder of the node \(hostPath\), and the",
        ),
    ],
    ids=["a source", "a volume"],
)
def test_folders_of_the_node_have_to_be_allowed(spec: dict[str, Any], said: str) -> None:
    rendered(spec)  # Allowed.

    with pytest.raises(HostPathNotAllowed, match=said):
        rendered(spec, CLOSED)


def test_folders_that_the_settings_mount_are_always_allowed() -> None:
    settings = settings_with(volumes=[{"name": "site", "hostPath": {"path": "/site"}}])

    closed = settings.model_copy(update={"allow_host_path": False})

    rendered({"model": {"source": "pvc://weights"}}, closed)  # Does not raise.


def test_a_relative_source_is_not_rendered_on_kubernetes() -> None:
    service = inference_service()
    model = service.spec.model.model_copy(update={"source": "./"})
    spec = service.spec.model_copy(update={"model": model})
    service = service.model_copy(update={"spec": spec})

    with pytest.raises(RenderError, match=r"'\./' is relative .*write file:///absolute/path"):
        render(service, uid=UID, settings=SETTINGS, token=TOKEN)
