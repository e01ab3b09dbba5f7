"""The pods of a service: the Ray head, and workers with one replica each; pure.

KubeRay adds to both what Ray needs (see ray-operator's controllers/ray/common/pod.go): the command
`ray start`, variables such as RAY_ADDRESS and RAY_AUTH_TOKEN, a memory volume at /dev/shm, a
liveness probe; to a worker an init container that waits for the head, unless it was told not to,
with this container's image, variables, mounts and securityContext; to the head the autoscaler, and
its service account.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tandem_operator.k8s import names
from tandem_operator.render import await_head
from tandem_operator.render.head_store import head_token
from tandem_operator.render.npu_profiles import NpuProfile
from tandem_operator.render.settings import ContainerResources, OperatorSettings
from tandem_operator.render.volumes import (
    HOME,
    TEMPORARY,
    Storage,
    head_storage,
    worker_storage,
)
from tandem_serve.api.draining import DRAIN_HEAD, DRAIN_WORKER, TERMINATION_GRACE_PERIOD_S
from tandem_serve.api.pods import EnvVar, Toleration
from tandem_serve.api.quantity import format_bytes, format_cpu, parse_cpu, parse_memory
from tandem_serve.api.ray_env import METRICS_PATH, METRICS_PORT, RAY_ENV, retry_env
from tandem_serve.api.spec import InferenceService

GCS_PORT: Final = 6379
AGENT_PORT: Final = 52365

_ARCHITECTURE: Final = "kubernetes.io/arch"

_ENV: Final[Mapping[str, str]] = {
    **RAY_ENV,
    **retry_env(f"{TEMPORARY}/unfinished-starts"),
    "HOME": HOME,
    "TMPDIR": TEMPORARY,
}

# Words that scrape configurations of Prometheus look for; Kubernetes gives them no meaning.
_SCRAPED: Final[Mapping[str, str]] = {
    "prometheus.io/scrape": "true",
    "prometheus.io/port": str(names.REPLICA_METRICS_PORT),
    "prometheus.io/path": METRICS_PATH,
}

# KubeRay's own readiness probes begin after ten seconds and ask every five, a worker's by starting
# bash and wget. Its liveness probes ask Ray's agent, never the model, so that a model may load as
# long as it needs, and no startupProbe has to wait for it. The head's stays as it is.
_HEAD_READY: Final[Mapping[str, Any]] = {
    "httpGet": {"path": "/api/healthz", "port": AGENT_PORT},
    "periodSeconds": 2,
    "timeoutSeconds": 5,
    "failureThreshold": 5,
}
# HAProxy answers 200 while it serves and its node is not about to go.
_WORKER_READY: Final[Mapping[str, Any]] = {
    "httpGet": {"path": "/-/healthz", "port": names.SERVE_PORT},
    "periodSeconds": 1,
    "timeoutSeconds": 2,
    "failureThreshold": 2,
}
# KubeRay's numbers. But where Ray hangs nothing can be drained: without a grace period of its own
# the kubelet would hold the card for as long as requests may take.
_WORKER_LIVES: Final[Mapping[str, Any]] = {
    "httpGet": {"path": "/api/local_raylet_healthz", "port": AGENT_PORT},
    "initialDelaySeconds": 30,
    "periodSeconds": 5,
    "timeoutSeconds": 5,
    "failureThreshold": 120,
    "terminationGracePeriodSeconds": 30,
}


def head_template(
    service: InferenceService,
    settings: OperatorSettings,
    profile: NpuProfile | None,
    *,
    token_secret: str,
) -> dict[str, Any]:
    """Return the pod template of the Ray head, which needs no card of `profile`.

    Raises:
        RenderError: the manifest's volumes do not fit together with the settings'.
    """
    storage = head_storage(settings)
    container = {
        **_container(service, settings, storage, ()),
        "name": "ray-head",
        "env": [
            *environment(service, settings, ()),
            *head_token(service, settings, token_secret),
        ],
        "ports": [
            _port("gcs-server", GCS_PORT),
            _port("dashboard", names.DASHBOARD_PORT),
            _port("metrics", names.METRICS_PORT),
            _port("serve", names.SERVE_PORT),
        ],
        "resources": resources(settings, settings.replica.head_resources),
        "lifecycle": _drain_hook(DRAIN_HEAD),
        "readinessProbe": dict(_HEAD_READY),
    }
    template = _template(service, settings, names.HEAD, container, storage)
    # One image for all: the head needs nodes of the replicas' architecture. Other choices of nodes
    # in the manifest are for the replicas: a head should not take a node with cards.
    chosen = (profile.node_selector if profile else {}) | service.spec.runtime.node_selector
    if _ARCHITECTURE in chosen:
        template["spec"]["nodeSelector"] = {_ARCHITECTURE: chosen[_ARCHITECTURE]}
    return template


def worker_template(
    service: InferenceService, settings: OperatorSettings, profile: NpuProfile | None
) -> dict[str, Any]:
    """Return the pod template of a worker, which holds exactly one replica.

    Raises:
        RenderError: volumes do not fit together, or the source is not a volume in Kubernetes.
    """
    storage = worker_storage(service, settings, profile)
    container = {
        **_container(service, settings, storage, profile.env if profile else ()),
        "name": "ray-worker",
        "env": [
            *environment(service, settings, profile.env if profile else ()),
            {"name": METRICS_PORT, "value": str(names.REPLICA_METRICS_PORT)},
        ],
        "ports": [
            _port("metrics", names.REPLICA_METRICS_PORT),
            _port("ray-metrics", names.METRICS_PORT),
            _port("serve", names.SERVE_PORT),
        ],
        "resources": _replica_resources(service, settings, profile),
        "lifecycle": _drain_hook(DRAIN_WORKER),
        "readinessProbe": dict(_WORKER_READY),
        "livenessProbe": dict(_WORKER_LIVES),
    }
    template = _template(service, settings, names.WORKER, container, storage)
    template["spec"]["initContainers"] = [_await_head(container, settings)]
    template["spec"]["topologySpreadConstraints"] = [_one_per_node(service)]
    # A replica never uses the Kubernetes API, so an attacker in one should get no account for it.
    template["spec"]["automountServiceAccountToken"] = False
    template["spec"] |= _chosen_nodes(service)
    if settings.replica.prometheus_annotations:
        template["metadata"]["annotations"] = dict(_SCRAPED)
    return template if profile is None else _on_npu_nodes(template, profile)


def resources(settings: OperatorSettings, requested: ContainerResources) -> dict[str, Any]:
    """Return limits and requests of a container that may use `requested`."""
    return _limits(settings, parse_cpu(requested.cpu), parse_memory(requested.memory))


def environment(
    service: InferenceService, settings: OperatorSettings, profile_env: Iterable[EnvVar]
) -> list[dict[str, str]]:
    """Return the variables of a container; the manifest's win, and cannot name reserved ones."""
    chosen = [*settings.replica.env, *profile_env, *service.spec.runtime.env]
    haproxy = settings.replica.haproxy
    merged = {
        **_ENV,
        **({} if haproxy is None else {"RAY_SERVE_HAPROXY_BINARY_PATH": haproxy}),
        **{variable.name: variable.value for variable in chosen},
    }
    # KubeRay leaves an empty value out when it writes the object back.
    return [
        {"name": name, "value": value} if value else {"name": name}
        for name, value in merged.items()
    ]


def _container(
    service: InferenceService,
    settings: OperatorSettings,
    storage: Storage,
    profile_env: Iterable[EnvVar],
) -> dict[str, Any]:
    replica = settings.replica
    return {
        "image": service.spec.runtime.image or replica.image,
        "imagePullPolicy": service.spec.runtime.image_pull_policy or replica.image_pull_policy,
        "env": environment(service, settings, profile_env),
        "volumeMounts": list(storage.mounts),
        **({"securityContext": replica.security_context} if replica.security_context else {}),
    }


def _template(
    service: InferenceService,
    settings: OperatorSettings,
    component: str,
    container: dict[str, Any],
    storage: Storage,
) -> dict[str, Any]:
    return {
        "metadata": {"labels": names.pod_labels(service.name, component)},
        "spec": {
            "containers": [container],
            "volumes": list(storage.volumes),
            # What Ray's autoscaler v2 asks for: it makes a new pod in place of a failed one.
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": TERMINATION_GRACE_PERIOD_S,
            # Else a container's program is process 1 there, to which Linux delivers no SIGTERM
            # that it does not handle. The autoscaler would outlive Ray by a minute, and a worker
            # that still waits for the head a deleted service by eleven.
            "shareProcessNamespace": True,
            # A Service called ray-… would else set variables that Ray reads as its own.
            "enableServiceLinks": False,
            **_placement(service, settings),
        },
    }


def _placement(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """Return security context and pull secrets, without empty ones, as Kubernetes stores them."""
    runtime, replica = service.spec.runtime, settings.replica
    secrets = dict.fromkeys([*replica.image_pull_secrets, *runtime.image_pull_secrets])
    fields = {
        "securityContext": replica.pod_security_context,
        "imagePullSecrets": [{"name": name} for name in secrets],
    }
    return {name: value for name, value in fields.items() if value}


def _chosen_nodes(service: InferenceService) -> dict[str, Any]:
    """Return the manifest's choice of nodes for the replicas."""
    runtime = service.spec.runtime
    tolerations = [_plain(toleration) for toleration in runtime.tolerations]
    fields = {"nodeSelector": dict(runtime.node_selector), "tolerations": tolerations}
    return {name: value for name, value in fields.items() if value}


def _on_npu_nodes(template: dict[str, Any], profile: NpuProfile) -> dict[str, Any]:
    spec = template["spec"]
    # The manifest's choice wins: it may name one node out of the profile's.
    spec["nodeSelector"] = {**profile.node_selector, **spec.get("nodeSelector", {})}
    if not spec["nodeSelector"]:
        del spec["nodeSelector"]
    if profile.tolerations:
        borne = [_plain(toleration) for toleration in profile.tolerations]
        spec["tolerations"] = [*borne, *spec.get("tolerations", [])]
    if profile.scheduler_name:
        spec["schedulerName"] = profile.scheduler_name
    return template


def _one_per_node(service: InferenceService) -> dict[str, Any]:
    """Spread replicas over nodes where possible: losing a node then loses one replica.

    A preference, not a condition: two replicas on a node are better than one, and than a
    replacement that waits for a missing node. Zones are left to Kubernetes: the scheduler ignores
    all constraints when nodes lack the label of one.
    """
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.pod_selector(service.name, names.WORKER)},
        # The old cluster's pods, which are about to go, do not count.
        "matchLabelKeys": [names.RAY_CLUSTER],
    }


def _await_head(worker: Mapping[str, Any], settings: OperatorSettings) -> dict[str, Any]:
    """Return the init container of a worker that ends once the head answers.

    KubeRay sets its FQ_RAY_IP. It has resources because a namespace's quota may demand them; they
    add nothing to the pod's, which takes the larger of this container's and the worker's.
    """
    shared = ("image", "imagePullPolicy", "securityContext")
    return {
        "name": "await-head",
        **{field: worker[field] for field in shared if field in worker},
        "command": ["bash", "-c", await_head.SCRIPT, str(GCS_PORT)],
        "resources": resources(settings, await_head.RESOURCES),
    }


def _replica_resources(
    service: InferenceService, settings: OperatorSettings, profile: NpuProfile | None
) -> dict[str, Any]:
    requested = service.spec.resources
    cpu = 1000 * requested.cpu + parse_cpu(settings.replica.worker_overhead_cpu)
    memory = requested.memory_bytes + parse_memory(settings.replica.worker_overhead_memory)
    limits = _limits(settings, cpu, memory)
    if profile is not None:
        for part in limits.values():
            part[profile.resource_name] = str(requested.npu)
    return limits


def _limits(settings: OperatorSettings, cpu: int, memory: int) -> dict[str, Any]:
    """Return limits and requests for thousandths of a CPU and bytes of memory.

    They are equal, so that pods of a production cluster do not compete; an overcommitted
    development cluster shares CPUs, never memory.
    """
    requested = max(1, cpu // settings.replica.cpu_overcommit)
    return {
        "limits": {"cpu": format_cpu(cpu), "memory": format_bytes(memory)},
        "requests": {"cpu": format_cpu(requested), "memory": format_bytes(memory)},
    }


def _drain_hook(command: Iterable[str]) -> dict[str, Any]:
    """Return the preStop hook of a pod: its requests end before Ray is stopped."""
    return {"preStop": {"exec": {"command": list(command)}}}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _plain(toleration: Toleration) -> dict[str, Any]:
    return toleration.model_dump(mode="json", by_alias=True, exclude_none=True)
