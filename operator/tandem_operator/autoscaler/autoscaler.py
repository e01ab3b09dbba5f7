"""One step of the autoscaler for one service: observe → decide → record → write.

It reads the service and its pods from the cache, and writes with the resourceVersion that it
decided on. Whatever has changed meanwhile makes the write a conflict; then the decision is dropped,
and the next step decides on what there is. So no step is taken twice, whichever process ends when.
"""

import logging
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from tandem_operator.autoscaler.agreement import Doubt
from tandem_operator.autoscaler.cross_check import CrossCheck
from tandem_operator.autoscaler.current_policy import (
    max_age_s,
    max_gap_s,
    scaling_policy,
    start_credit_s,
    unknown_time_zones,
)
from tandem_operator.autoscaler.document import ExplainedDecision, with_decision
from tandem_operator.autoscaler.measure import (
    FRESH_S,
    Measured,
    Replica,
    Targets,
    at_zero,
    measure,
    unmeasured,
)
from tandem_operator.autoscaler.memory import Memory
from tandem_operator.autoscaler.node_room import NodeReader
from tandem_operator.autoscaler.past import past_loads
from tandem_operator.autoscaler.prometheus import PrometheusClient, PrometheusError
from tandem_operator.autoscaler.publish import Publisher
from tandem_operator.autoscaler.refusals import Refusals
from tandem_operator.autoscaler.replicas import ReplicaPod, active_cluster, replica_pods
from tandem_operator.autoscaler.room import Room, replica_shape, room_for
from tandem_operator.autoscaler.signals import Scope, signals_query
from tandem_operator.clock import from_unix_s, to_unix_s
from tandem_operator.crd.parse import parse_object
from tandem_operator.k8s import names
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import Conflict
from tandem_operator.k8s.kinds import INFERENCE_SERVICE, POD, RAY_SERVICE
from tandem_operator.k8s.objects import NamespacedName, Object, version_of
from tandem_operator.k8s.owners import is_being_deleted
from tandem_operator.metrics import AutoscalerMetrics
from tandem_operator.render.desired import RenderError
from tandem_operator.render.npu import npu_profile
from tandem_operator.render.pods import worker_template
from tandem_operator.render.settings import OperatorSettings
from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.hindsight import GRAIN_S, MEMORY_S
from tandem_operator.scaling_law.history import History
from tandem_operator.scaling_law.mode import (
    StatusScaling,
    desired_replicas,
    next_status,
    replicas_to_write,
)
from tandem_operator.scaling_law.observation import Observation, SignalProblem
from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.slots import max_in_flight
from tandem_serve.api.spec import InferenceService

_log: Final = logging.getLogger(__name__)

_MAX_CONFLICTS: Final = 3
"""Decisions that are made again at once when they lose to another write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A service as one step sees it."""

    key: NamespacedName
    isvc: Object
    service: InferenceService
    status: StatusScaling
    pods: tuple[ReplicaPod, ...]
    cluster: str | None
    """The Ray cluster that serves; None: none does."""

    memory: Memory
    now: float
    """Unix time."""

    @property
    def in_force(self) -> int:
        return desired_replicas(self.service.spec.scaling, self.status)

    @property
    def current(self) -> int:
        """The number that is decided on: the last one, even where the bounds have moved."""
        before = self.status.desired_replicas
        is_own = self.service.spec.scaling.mode == "Auto" and before is not None
        return before if is_own and before is not None else self.in_force

    @property
    def is_at_zero(self) -> bool:
        """True where no replica answers, and none should."""
        return self.current == 0 and all(pod.ready_at is None for pod in self.pods)

    @property
    def overdue(self) -> list[str]:
        """The replicas that have not answered for longer than a start takes."""
        credit_s = start_credit_s(self.service, self.memory.history.cold_start_s)
        names = [pod.name for pod in self.pods if pod.is_overdue(self.now, credit_s)]
        short_since = self.memory.short_since
        if short_since is not None and self.now - short_since > credit_s:
            names += ["that has no pod"] * (self.current - len(self.pods))
        return names

    @property
    def targets(self) -> Targets:
        slo = self.service.spec.slo
        return Targets(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s)

    @property
    def replicas(self) -> list[Replica]:
        return [
            Replica(pod.name, pod.ready_at is not None, pod.is_fresh(self.now, FRESH_S))
            for pod in self.pods
        ]


class Autoscaler:
    """Decides about services, one step at a time."""

    def __init__(
        self,
        kube: KubeClient,
        settings: OperatorSettings,
        *,
        cache: ObjectCache,
        prometheus: PrometheusClient,
        cross_check: CrossCheck,
        refusals: Refusals,
        publisher: Publisher,
        metrics: AutoscalerMetrics,
    ) -> None:
        self._kube = kube
        self._settings = settings
        self._cache = cache
        self._prometheus = prometheus
        self._cross_check = cross_check
        self._refusals = refusals
        self._publisher = publisher
        self._metrics = metrics
        self._nodes = NodeReader(kube)
        self._memories: dict[NamespacedName, Memory] = {}

    @property
    def known(self) -> frozenset[NamespacedName]:
        """The services that there were at their last step."""
        return frozenset(self._memories)

    async def step(self, key: NamespacedName) -> bool:
        """Make one step for the service `key`.

        Returns:
            True: another step is due at once.

        Raises:
            KubeError: the API server could not be written to.
        """
        if not all(self._cache.covers(kind, key.namespace) for kind in (INFERENCE_SERVICE, POD)):
            # A watch has just begun, or ended.
            return True
        view = self._view(key)
        if view is None:
            return False
        try:
            if await self._hand_over(view):
                return True
            if view.service.spec.scaling.mode in {"Auto", "Recommend"}:
                await self._autoscale(view)
            else:
                await self._follow(view)
        except Conflict as error:
            _log.info("%s: the decision is dropped, since the service has changed: %s", key, error)
            self._metrics.conflicts.inc()
            view.memory.conflicts += 1
            # The watch has the other write by then; two that fight have their periods.
            return view.memory.conflicts <= _MAX_CONFLICTS
        view.memory.conflicts = 0
        return False

    def forget(self, key: NamespacedName) -> None:
        """Drop all state of a service that is gone."""
        if self._memories.pop(key, None) is not None:
            self._metrics.forget(key)

    def _view(self, key: NamespacedName) -> _View | None:
        """Return the service; None: it is gone, or its spec is invalid."""
        isvc = self._cache.get(INFERENCE_SERVICE, key)
        if isvc is None or is_being_deleted(isvc):
            self.forget(key)
            return None
        ray_service = self._cache.get(RAY_SERVICE, key)
        pods = replica_pods(self._cache.of_service(POD, key), ray_service)
        memory = self._memory(key, isvc, pods)
        memory.measure_cold_starts(pods)
        service = _parsed(isvc, memory)
        if service is None:
            # The reconciler reports it; what runs goes on.
            return None
        status = StatusScaling.read(isvc.get("status") or {})
        view = _View(
            key=key,
            isvc=isvc,
            service=service,
            status=status,
            pods=pods,
            cluster=active_cluster(ray_service),
            memory=memory,
            now=time.time(),
        )
        memory.count_pods(len(pods), view.current, view.now)
        ready = sum(pod.ready_at is not None for pod in pods)
        self._metrics.set_replicas(key, desired=view.in_force, ready=ready)
        if not view.is_at_zero:
            self._metrics.set_refused(key, None)
        return view

    def _memory(self, key: NamespacedName, isvc: Object, pods: tuple[ReplicaPod, ...]) -> Memory:
        known = self._memories.get(key)
        if known is None or known.uid != isvc["metadata"]["uid"]:
            known = Memory.of(isvc, pods, max_gap_s(self._settings.autoscaling))
            self._memories[key] = known
        return known

    async def _hand_over(self, view: _View) -> bool:
        """Write the number that mode Auto has left into the spec; True: it was written."""
        number = replicas_to_write(view.service.spec.scaling, view.status)
        if number is None:
            return False
        await self._kube.scale(
            INFERENCE_SERVICE,
            view.key,
            number,
            version=version_of(view.isvc),
            manager=names.AUTOSCALER,
        )
        _log.info("%s: spec.scaling.replicas is %d from now on", view.key, number)
        return True

    async def _follow(self, view: _View) -> None:
        """Write down the number that others have chosen."""
        self._metrics.end_decisions(view.key)
        if view.is_at_zero:
            # Another autoscaler has no replica to ask how many requests come.
            await self._count_refused(view)
        numbers = next_status(view.service.spec.scaling, view.status)
        await self._publisher.write(view.isvc, numbers, view.memory)

    async def _autoscale(self, view: _View) -> None:
        measured = (await self._observe(view)).with_overdue(view.overdue)
        await self._recall(view, measured)
        explained = await self._decide(view, measured)
        history = _record(view, explained)
        await self._write(view, explained, history)

    async def _count_refused(self, view: _View) -> int | None:
        """Return the requests that were refused for want of a replica; None: unknown."""
        refused = await self._refusals.count(self._cache.of_service(POD, view.key), view.cluster)
        if refused is None and view.memory.history.since_change_s(view.now) < FRESH_S:
            # The proxy has not followed the last replica yet.
            return 0
        self._metrics.set_refused(view.key, refused)
        return refused

    async def _observe(self, view: _View) -> Measured:
        """Ask Prometheus, and one replica itself; without replicas, the proxy on the head."""
        if view.is_at_zero:
            return at_zero(await self._count_refused(view), view.replicas)
        replicas = view.replicas
        try:
            signals = await self._prometheus.signals(self._scope(view))
        except PrometheusError as error:
            doubt = Doubt(SignalProblem.UNREACHABLE, str(error))
            return unmeasured(doubt, replicas, view.current)
        age_s = max_age_s(self._settings.autoscaling)
        disagreeing = await self._cross_check.check(signals, view.pods, view.memory)
        pods = (pod["metadata"]["name"] for pod in self._cache.of_service(POD, view.key))
        strangers = view.memory.strangers(pods, (*signals.pods, *signals.ended))
        return measure(
            signals,
            view.targets,
            replicas,
            view.current,
            max_age_s=age_s,
            slots=max_in_flight(view.service.spec.server.max_link_num),
            disagreeing=disagreeing,
            strangers=strangers,
        )

    def _scope(self, view: _View) -> Scope:
        settings = self._settings.autoscaling
        return Scope.of(
            view.key.namespace,
            view.key.name,
            view.service.spec.slo,
            window_s=settings.window_seconds,
            matchers=settings.prometheus.matchers,
        )

    async def _recall(self, view: _View, measured: Measured) -> None:
        """Ask Prometheus, once, for the loads of the time before this process."""
        memory = view.memory
        if memory.is_recalled or view.is_at_zero or measured.observation.problem is not None:
            return
        memory.is_recalled = True
        # One of the same name before it may have been another model.
        created = to_unix_s(view.isvc["metadata"]["creationTimestamp"])
        begin_s = max(view.now - MEMORY_S, created)
        if begin_s > view.now - GRAIN_S:
            return
        query = signals_query(self._scope(view))
        try:
            samples = await self._prometheus.span(query, begin_s, view.now, GRAIN_S)
        except PrometheusError as error:
            _log.info("%s: the loads of the last hour stay unknown: %s", view.key, error)
            return
        age_s = max_age_s(self._settings.autoscaling)
        past = past_loads(samples, view.targets, max_age_s=age_s)
        memory.history = memory.history.with_loads(past)
        _log.info("%s: Prometheus knows %d loads of the last hour", view.key, len(past))

    async def _decide(self, view: _View, measured: Measured) -> ExplainedDecision:
        """Decide; for more replicas once more, within the room on the nodes."""
        observation, note = measured.observation, measured.note
        decision = self._decided(view, observation)
        if decision.desired > view.current and (room := await self._room(view)):
            observation = replace(observation, room=room.replicas)
            decision = self._decided(view, observation)
            is_short = decision.reason is DecisionReason.CAPACITY_UNAVAILABLE
            note = room.message if is_short else note
        return ExplainedDecision(
            decision=decision,
            observation=observation,
            note=note,
            remarks=replace(
                measured.remarks, time_zones=unknown_time_zones(view.service.spec.scaling)
            ),
            engine=measured.engine,
        )

    def _decided(self, view: _View, observation: Observation) -> Decision:
        history = view.memory.history
        policy = scaling_policy(
            view.service.spec.scaling,
            self._settings.autoscaling,
            view.service.spec.slo,
            cold_start_s=history.cold_start_s,
            now=view.now,
        )
        return decide(observation, policy, history, view.now)

    async def _room(self, view: _View) -> Room | None:
        """Return the room on the nodes; None: unknown, or not asked for."""
        # Of namespaces that are served by name alone, the operator sees no other pods.
        if not self._settings.autoscaling.check_nodes or self._settings.namespaces:
            return None
        try:
            profile = npu_profile(view.service, self._settings)
            template = worker_template(view.service, self._settings, profile)
        except RenderError:
            return None
        nodes = await self._nodes.nodes()
        if nodes is None:
            return None
        unplaced = max(view.in_force - sum(pod.has_node for pod in view.pods), 0)
        return room_for(replica_shape(template), nodes, unplaced)

    async def _write(self, view: _View, explained: ExplainedDecision, history: History) -> None:
        """Write the decision; only what was written is remembered."""
        memory, decision = view.memory, explained.decision
        numbers = next_status(view.service.spec.scaling, view.status, decision)
        changed = replace(
            memory,
            history=history,
            decisions=with_decision(memory.decisions, explained, from_unix_s(view.now)),
        )
        await self._publisher.write(view.isvc, numbers, changed, explained)
        memory.history, memory.decisions = changed.history, changed.decisions
        self._metrics.set_replicas(
            view.key,
            desired=numbers.desired_replicas or view.in_force,
            ready=explained.observation.ready,
        )
        self._metrics.count_decision(
            view.key,
            str(decision.reason),
            recommended=decision.recommended,
            is_problem=explained.is_metrics_problem,
        )


def _record(view: _View, explained: ExplainedDecision) -> History:
    """Return the history with the decision; in mode Recommend no number changes by it."""
    decision = explained.decision
    if view.service.spec.scaling.mode != "Auto":
        decision = replace(decision, desired=explained.observation.desired)
    return view.memory.history.append(view.now, explained.observation, decision)


def _parsed(isvc: dict[str, Any], memory: Memory) -> InferenceService | None:
    """Return the parsed spec, which is kept until its generation changes; None: it is invalid."""
    generation = isvc["metadata"]["generation"]
    if memory.parsed is None or memory.parsed[0] != generation:
        try:
            memory.parsed = (generation, parse_object(isvc))
        except ManifestError:
            memory.parsed = (generation, None)
    return memory.parsed[1]
