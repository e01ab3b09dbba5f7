"""A service with its pods and Events, as its explanation reads them; pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from tandem_engine.api.config import ParallelismConfig
from tandem_operator.clock import seconds_between
from tandem_operator.commands.text import age_between
from tandem_operator.k8s.names import COMPONENT, FIELD_MANAGER, SERVICE, WORKER
from tandem_operator.k8s.objects import Object
from tandem_operator.k8s.owners import is_being_deleted
from tandem_operator.scaling_law.mode import StatusScaling, desired_replicas
from tandem_operator.status.conditions import ConditionType, find_condition
from tandem_operator.status.pod_view import pod_view
from tandem_serve.api.changes import ChangeClass
from tandem_serve.api.scaling import ScalingSpec
from tandem_serve.api.spec import PROGRESS_DEADLINE_S

RECONCILE_WITHIN_S: Final = 60.0
"""Seconds within which a running operator has reconciled a new spec."""

_RECENT_S: Final = 900.0


def ranks_in(spec: Object) -> int:
    """Ranks of each replica that a spec asks for."""
    try:
        engine = spec.get("engine", {}).get("parallelism", {})
        return ParallelismConfig.model_validate(engine).ranks
    except (AttributeError, ValidationError):
        return 1  # another sentence tells of a spec that is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class EventInfo:
    """A Kubernetes Event: object, reason, message, last time and count."""

    kind: str
    """Kind of the object that it is about."""
    name: str
    """Name of that object."""
    reason: str
    message: str
    at: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSnapshot:
    """One service, the objects that belong to it, and the time."""

    service: Object
    ray_service: Object | None
    pods: Sequence[Object]
    events: Sequence[Object]
    """Those of the namespace."""
    now: str

    @property
    def name(self) -> str:
        """Name of the service."""
        return str(self.service["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.service["metadata"]["namespace"])

    @property
    def spec(self) -> Object:
        """The spec as it was written."""
        spec: Object = self.service.get("spec") or {}
        return spec

    @property
    def status(self) -> Object:
        """The status that the operator last wrote; empty: none."""
        status: Object = self.service.get("status") or {}
        return status

    def condition(self, condition_type: ConditionType) -> Mapping[str, Any]:
        """Return a condition of the status; empty: there is none."""
        return find_condition(self.status, condition_type)

    def holds(self, condition_type: ConditionType) -> bool:
        """Return True when a condition is True."""
        return self.condition(condition_type).get("status") == "True"

    def reason(self, condition_type: ConditionType) -> str:
        """Return the reason of a condition."""
        return str(self.condition(condition_type).get("reason", ""))

    def message(self, condition_type: ConditionType) -> str:
        """Return the message of a condition."""
        return str(self.condition(condition_type).get("message", ""))

    def condition_age(self, condition_type: ConditionType) -> str:
        """Age of a condition's last transition, such as 5m."""
        return self.since(self.condition(condition_type).get("lastTransitionTime", self.now))

    def since(self, moment: str) -> str:
        """Time since `moment`, such as 5m."""
        return age_between(moment, self.now)

    @property
    def desired(self) -> int:
        """Replicas that are to run."""
        try:
            scaling = ScalingSpec.model_validate(
                self.spec.get("scaling") or {}, by_alias=True, by_name=False
            )
        except ValidationError:
            return int(self._replicas.get("desired", 1))
        return desired_replicas(scaling, StatusScaling.read(self.status))

    @property
    def ready(self) -> int:
        """Replicas that answer."""
        return int(self._replicas.get("ready", 0))

    @property
    def deadline_s(self) -> int:
        """progressDeadlineSeconds."""
        return int(self.spec.get("progressDeadlineSeconds") or PROGRESS_DEADLINE_S)

    @property
    def ranks(self) -> int:
        """Ranks of each replica."""
        return ranks_in(self.spec)

    @property
    def needs_api_key(self) -> bool:
        """True when requests need an API key."""
        return bool((self.spec.get("server") or {}).get("apiKeysSecret"))

    @property
    def generation(self) -> int:
        """Generation of the newest spec."""
        return int(self.service["metadata"].get("generation", 1))

    @property
    def observed_generation(self) -> int:
        """Generation of the newest spec that the operator has observed; 0: none."""
        # Ready, and the whole status, stay behind until a spec is in effect.
        observed = (
            self.status,
            *(self.condition(condition_type) for condition_type in ConditionType),
        )
        return max(int(status.get("observedGeneration") or 0) for status in observed)

    @property
    def written_at(self) -> str:
        """Time of the last write of the spec."""
        return max(self._writes(), default=("", ""))[0] or str(self._created_at)

    @property
    def writer(self) -> str:
        """Field manager that last wrote the spec, such as kubectl; empty: unknown."""
        return max(self._writes(), default=("", ""))[1]

    @property
    def is_unobserved(self) -> bool:
        """True when the operator has not observed the newest spec within its time."""
        if self.observed_generation >= self.generation:
            return False
        return seconds_between(self.written_at, self.now) > RECONCILE_WITHIN_S

    @property
    def last_change(self) -> EventInfo | None:
        """The last change of the running service that has an Event; Events live an hour."""
        ours = (
            event
            for event in self.events
            if event.get("reason") in set(ChangeClass) and self._is_ours(event)
        )
        return max((_event_info(event) for event in ours), key=lambda event: event.at, default=None)

    @property
    def new_cluster(self) -> str | None:
        """The Ray cluster of a version that does not serve yet."""
        status = (self.ray_service or {}).get("status") or {}
        name = (status.get("pendingServiceStatus") or {}).get("rayClusterName")
        return str(name) if name else None

    @property
    def workers(self) -> list[Object]:
        """Pods with replicas that are not being deleted."""
        return [
            pod
            for pod in self.pods
            if (pod["metadata"].get("labels") or {}).get(COMPONENT) == WORKER
            and not is_being_deleted(pod)
        ]

    def blocked_pods(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each pod that cannot run, and its reason."""
        for pod in self.pods:
            view = pod_view(pod)
            if view.failure:
                yield view.name, view.failure

    def warnings(self) -> list[EventInfo]:
        """Return the recent warnings about the service's objects, the newest first."""
        names = {self.name, *(pod["metadata"]["name"] for pod in self.pods)}
        warnings = [
            _event_info(event)
            for event in self.events
            if event.get("type") == "Warning"
            and not self._is_ours(event)
            and _belongs(str((event.get("involvedObject") or {}).get("name", "")), names, self.name)
        ]
        recent = [event for event in warnings if seconds_between(event.at, self.now) < _RECENT_S]
        return sorted(recent, key=lambda event: event.at, reverse=True)

    @property
    def selector(self) -> str:
        """Label selector of all that belongs to the service."""
        return f"{SERVICE}={self.name}"

    @property
    def _replicas(self) -> Object:
        replicas: Object = self.status.get("replicas") or {}
        return replicas

    @property
    def _created_at(self) -> str:
        return str(self.service["metadata"]["creationTimestamp"])

    def _writes(self) -> Iterable[tuple[str, str]]:
        """Yield time and field manager of each recorded write of the spec."""
        for entry in self.service["metadata"].get("managedFields") or ():
            if "f:spec" in (entry.get("fieldsV1") or {}) and entry.get("time"):
                yield str(entry["time"]), str(entry.get("manager", ""))

    def _is_ours(self, event: Object) -> bool:
        about = event.get("involvedObject") or {}
        source = (event.get("source") or {}).get("component")
        return about.get("name") == self.name and source == FIELD_MANAGER


def _belongs(name: str, names: set[str], service: str) -> bool:
    # KubeRay names Ray clusters and pods after the service.
    return name in names or name.startswith(f"{service}-")


def _event_info(event: Object) -> EventInfo:
    about = event.get("involvedObject") or {}
    at = (
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )
    return EventInfo(
        kind=str(about.get("kind", "")),
        name=str(about.get("name", "")),
        reason=str(event.get("reason", "")),
        message=str(event.get("message", "")),
        at=str(at),
        count=int(event.get("count") or 1),
    )
