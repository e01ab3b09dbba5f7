"""The operator's settings as data, which rendering takes for granted."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from tandem_engine.api.model import Model
from tandem_operator.render.npu_profiles import BUILT_IN, NpuProfile
from tandem_serve.api.pods import EnvVar, GcsFaultToleranceOptions, ObjectName, SecretName
from tandem_serve.api.quantity import Memory, parse_cpu

_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
# Names that begin with two underscores are Prometheus' own.
_LABEL_NAME: Final = "^_?[a-zA-Z][a-zA-Z0-9_]*$"

# uid and gid 1000 are the replica image's own user, and on Ascend hosts HwHiAiUser, whom the
# device files belong to.
_POD_SECURITY: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "fsGroup": 1000,
    # A volume of weights is not walked through at every start only to find its group right.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def _cpu(value: str) -> str:
    parse_cpu(value)
    return value


def _version(value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise ValueError(f"'{value}' is not a version of Ray; write one such as 2.60.0")
    return value


Cpu = Annotated[str, AfterValidator(_cpu)]
"""An amount of CPU, such as 500m or "2"."""


class ContainerResources(Model):
    """Resources of one container: its limits, which the node reserves for it."""

    cpu: Cpu
    """CPU."""

    memory: Memory
    """Memory."""


class ReplicaDefaults(Model):
    """Defaults for the pods of every service, Ray head and replicas alike."""

    image: Annotated[str, Field(min_length=1)]
    """Image with tandem[serve,engine], bash and Ray."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Pull policy of the image."""

    image_pull_secrets: list[SecretName] = Field(default_factory=list)
    """Secrets with the credentials of image registries, in the services' namespaces."""

    env: list[EnvVar] = Field(default_factory=list)
    """Further variables of the environment."""

    haproxy: Annotated[str, Field(pattern="^/")] | None = None
    """Path of `tandem-haproxy` in an image whose environment does not name it, as Tandem's does:
    without it a pod that is not needed any more stays while clients keep their connections busy."""

    volumes: list[dict[str, Any]] = Field(default_factory=list)
    """Further volumes, as in a pod."""

    volume_mounts: list[dict[str, Any]] = Field(default_factory=list)
    """Mounts of those volumes, as in a container."""

    cpu_overcommit: Annotated[int, Field(ge=1, le=100)] = 1
    """Share of its CPU limit that a pod asks the scheduler for: 1/cpuOvercommit. Above 1 replicas
    slow each other down; for small development clusters only."""

    head_resources: ContainerResources = ContainerResources(cpu="1", memory="2Gi")
    """The Ray head: its control plane, the dashboard and Serve's controller; no replica."""

    autoscaler_resources: ContainerResources = ContainerResources(cpu="500m", memory="512Mi")
    """Ray's autoscaler, a container beside the head."""

    worker_overhead_memory: Memory = "1Gi"
    """Memory of a worker pod for Ray itself, beside the replica's."""

    worker_overhead_cpu: Cpu = "1"
    """CPU of a worker pod for Ray and HAProxy, beside the replica's compute threads: without it the
    threads would use the pod's share up, and Kubernetes then stops all of the pod for a while."""

    prometheus_annotations: bool = False
    """Annotate the pods of replicas with prometheus.io/scrape, port and path, for a Prometheus that
    finds pods by them; one that the chart's PodMonitor tells would measure each replica twice."""

    gcs_fault_tolerance_options: GcsFaultToleranceOptions | None = None
    """A Redis that outlives the Ray heads of services that name none; its Secrets are in each of
    their namespaces. A client that may write to it can run code in all of these heads."""

    pod_security_context: dict[str, Any] = Field(default_factory=lambda: dict(_POD_SECURITY))
    """Security of the pods, as in Kubernetes."""

    security_context: dict[str, Any] = Field(default_factory=lambda: dict(_CONTAINER_SECURITY))
    """Security of the containers, as in Kubernetes."""

    ray_version: Annotated[str, AfterValidator(_version)] = "2.60.0"
    """Version of Ray in the image; KubeRay decides by it what Ray can do."""


class LabelRequirement(Model):
    """One condition on labels."""

    key: str
    """The label."""

    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Operator of the condition."""

    values: list[str] = Field(default_factory=list)
    """Values, for In and NotIn."""


class LabelSelector(Model):
    """Selects objects by their labels; empty means all."""

    match_labels: dict[str, str] = Field(default_factory=dict)
    """Labels that they have."""

    match_expressions: list[LabelRequirement] = Field(default_factory=list)
    """Further conditions."""


class IpBlock(Model):
    """A range of addresses."""

    cidr: Annotated[str, Field(min_length=1)]
    """The range, such as 10.0.0.0/8."""

    except_: Annotated[list[str], Field(alias="except", default_factory=list)]
    """Ranges inside it that are excluded."""


class Peer(Model):
    """A NetworkPolicyPeer that may connect."""

    ip_block: IpBlock | None = None
    """A range of addresses; excludes the others."""

    namespace_selector: LabelSelector | None = None
    """Namespaces of the pods; absent means the service's own."""

    pod_selector: LabelSelector | None = None
    """Pods; absent means all of those namespaces."""

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        selectors = self.namespace_selector is not None or self.pod_selector is not None
        if self.ip_block is not None and selectors:
            raise ValueError(
                "ipBlock is beside a selector; give each a peer of its own in the list"
            )
        if self.ip_block is None and not selectors:
            raise ValueError(
                "the peer is empty; give namespaceSelector, podSelector or ipBlock "
                "(namespaceSelector: {} means every pod)"
            )
        return self

    def manifest(self) -> dict[str, Any]:
        """The peer as Kubernetes writes it back: without what is empty, but for a selector."""
        document = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {
            name: {key: value for key, value in part.items() if value}
            for name, part in document.items()
        }


def _pods(namespace: str, **labels: str) -> list[Peer]:
    """Return the pods of one namespace that have labels: labels alone may be on any pod."""
    named = {f"app.kubernetes.io/{name}": value for name, value in labels.items()}
    return [
        Peer(
            namespace_selector=LabelSelector(
                match_labels={"kubernetes.io/metadata.name": namespace}
            ),
            pod_selector=LabelSelector(match_labels=named),
        )
    ]


_Port = Annotated[int, Field(ge=1, le=65535)]


class AccessSettings(Model):
    """NetworkPolicyPeers that may connect to a service's pods, and that these may connect to."""

    kuberay: list[Peer] = Field(
        default_factory=lambda: _pods("kuberay-system", component="kuberay-operator")
    )
    """KubeRay's operator: it hands the Serve document to Ray's dashboard."""

    operator: list[Peer] = Field(
        default_factory=lambda: _pods("tandem-system", name="tandem-operator")
    )
    """This operator: it reads Ray's dashboard and the replicas' metrics."""

    prometheus: list[Peer] = Field(default_factory=lambda: _pods("monitoring", name="prometheus"))
    """Prometheus: it reads the metrics."""

    clients: list[Peer] = Field(default_factory=lambda: [Peer(namespace_selector=LabelSelector())])
    """Clients that may send requests; by default the pods of every namespace."""

    destinations: list[Peer] = Field(default_factory=list)
    """Peers that the pods of services may connect to, at every port, beside those that Tandem knows
    of: pods of the same service, name servers, the receiver of traces, and for Ray heads the
    Kubernetes API and their store. ipBlock: {cidr: 0.0.0.0/0} leaves everything open."""

    api_server_ports: Annotated[list[_Port], Field(min_length=1)] = Field(
        default_factory=lambda: [443, 6443]
    )
    """Ports of the Kubernetes API, as pods reach it."""


class PrometheusRuleSettings(Model):
    """The PrometheusRule that each service with an SLO has."""

    enabled: bool | Literal["auto"] = "auto"
    """Make it; auto: where the API server has the kind and the operator may write it. With true a
    cluster that has not is an error in the status of these services; false makes and removes
    none."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that the Prometheus selects rules by."""

    runbook_url: Annotated[str, Field(min_length=1)] = "docs/guides/alerts.md"
    """Address of the page about alerts, which each alert links to with a heading's anchor."""


class PrometheusSettings(Model):
    """The Prometheus that has scraped the replicas."""

    url: Annotated[str, Field(pattern="^https?://[^/ ]+(/[^ ]*)?$")] | None = None
    """Base URL of its HTTP API, such as http://prometheus-operated.monitoring.svc:9090; absent:
    there is none, and the autoscaler changes no number."""

    bearer_token_file: Annotated[str, Field(pattern="^/")] | None = None
    """File with a token that is sent as `Authorization: Bearer`; read for each query."""

    ca_file: Annotated[str, Field(pattern="^/")] | None = None
    """File with the certificates that an https URL is checked by; absent: those of the system."""

    matchers: dict[str, str] = Field(
        default_factory=dict, json_schema_extra={"propertyNames": {"pattern": _LABEL_NAME}}
    )
    """Labels that the replicas' series have beside namespace and service, and their values, such
    as `cluster: east` in a Prometheus that holds several clusters: it would add up services of the
    same name."""

    @field_validator("matchers")
    @classmethod
    def _match_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not re.fullmatch(_LABEL_NAME, name):
                raise ValueError(
                    f"'{name}' is not a name of a label; write one such as cluster: a "
                    "letter, then letters, digits and underscores"
                )
        return value


class AutoscalingSettings(Model):
    """The autoscaler of the services in the modes Auto and Recommend."""

    prometheus: PrometheusSettings = PrometheusSettings()
    """The Prometheus that has scraped the replicas."""

    period_seconds: Annotated[int, Field(ge=1, le=300)] = 15
    """Seconds between two decisions about a service."""

    window_seconds: Annotated[int, Field(ge=10, le=3600)] = 60
    """Window of latencies and rates; at least four times the interval of the scrapes."""

    check_nodes: bool = False
    """Ask for no replica that no node can hold. Not where a cluster autoscaler adds nodes: it does
    so for pods that wait."""


class OperatorSettings(Model):
    """The operator's settings."""

    namespaces: list[ObjectName] = Field(default_factory=list)
    """Namespaces whose InferenceServices are served; empty means all."""

    allow_host_path: bool = False
    """Allow manifests to name folders of the nodes: file:// sources and hostPath volumes. The
    settings' own volumes are not restricted."""

    replica: ReplicaDefaults
    """Defaults for the pods of every service."""

    access: AccessSettings = AccessSettings()
    """Peers that may connect to the pods of a service."""

    prometheus_rule: PrometheusRuleSettings = PrometheusRuleSettings()
    """The PrometheusRule of each service with an SLO."""

    npu_profiles: dict[ObjectName, NpuProfile] = Field(default_factory=lambda: dict(BUILT_IN))
    """Kinds of NPU node by name: the built-in ones, and those given here, which win."""

    autoscaling: AutoscalingSettings = AutoscalingSettings()
    """The autoscaler of the services in the modes Auto and Recommend."""

    default_npu_profile: ObjectName | None = None
    """Profile of a service that requests cards and names none."""

    resync_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    """Seconds between two resyncs: every service is reconciled again, should an event be lost."""

    @field_validator("npu_profiles", mode="before")
    @classmethod
    def _adds_to_the_built_in(cls, value: Any) -> Any:
        return {**BUILT_IN, **value} if isinstance(value, Mapping) else value

    @model_validator(mode="after")
    def _default_profile_is_known(self) -> Self:
        name = self.default_npu_profile
        if name is not None and name not in self.npu_profiles:
            raise ValueError(
                f"defaultNpuProfile '{name}' is not one of npuProfiles; "
                f"allowed: {', '.join(sorted(self.npu_profiles))}"
            )
        return self
