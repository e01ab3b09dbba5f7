"""One reconcile of one service: read → decide → report → write; level-based.

It reads from the cache. Before it writes a child object it reads again, from the API server, since
a watch may be behind. The status is as old as the cache.
"""

import logging
import time
from dataclasses import replace
from typing import Final, NamedTuple

from tandem_operator.clock import now_text
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import Forbidden, KindMissing, KubeError, NotFound
from tandem_operator.k8s.events import EventRecorder
from tandem_operator.k8s.kinds import INFERENCE_SERVICE
from tandem_operator.k8s.objects import NamespacedName, Object
from tandem_operator.k8s.owners import is_being_deleted
from tandem_operator.k8s.reader import CachedReader, Reader
from tandem_operator.metrics import Metrics
from tandem_operator.ray.client import RayClient
from tandem_operator.ray.token import ray_token
from tandem_operator.ray.token_key import TokenKey
from tandem_operator.reconcile.apply import apply
from tandem_operator.reconcile.decide import (
    Intent,
    collect_facts,
    decide,
    is_reconciled,
    requeue_after_s,
    write_conflict,
)
from tandem_operator.reconcile.observation import Observation
from tandem_operator.reconcile.observe import KnownToken, observe
from tandem_operator.reconcile.other_operators import OtherOperators
from tandem_operator.reconcile.parsed_spec import ParsedSpec, parse_spec
from tandem_operator.reconcile.plan import CreateToken
from tandem_operator.reconcile.report import Reporter, deadline_in_s
from tandem_operator.reconcile.service_state import ServiceState
from tandem_operator.render.settings import OperatorSettings
from tandem_operator.status.document import status_document, unknown_document
from tandem_operator.status.facts import Facts, Problem

_CONFIRM_EVERY: Final = 3
"""Resyncs after which the Secret of Ray's token is confirmed once more."""

_log = logging.getLogger(__name__)


class _View(NamedTuple):
    """A service as one reconcile sees it, and what is to be done."""

    isvc: Object
    parsed: ParsedSpec
    observation: Observation
    intent: Intent

    @property
    def desired_state(self) -> tuple[int, int | None]:
        """Generation and number of replicas: what its writes are to bring about."""
        service = self.parsed.service
        return self.isvc["metadata"]["generation"], service.replicas if service else None


class Reconciler:
    """Brings services to their desired state, one reconcile at a time."""

    def __init__(
        self,
        kube: KubeClient,
        ray: RayClient,
        settings: OperatorSettings,
        *,
        cache: ObjectCache,
        events: EventRecorder,
        metrics: Metrics,
        token_key: TokenKey,
        operator: str,
    ) -> None:
        self._kube = kube
        self._cached, self._live = CachedReader(kube, cache), Reader(kube)
        self._ray = ray
        self._token_key = token_key
        self._settings = settings
        self._events = events
        self._metrics = metrics
        self._reporter = Reporter(kube, events, metrics, operator=operator)
        self._others = OtherOperators(events, own=operator)
        self._states: dict[NamespacedName, ServiceState] = {}

    @property
    def known(self) -> frozenset[NamespacedName]:
        """The services that existed at their last reconcile."""
        return frozenset(self._states)

    async def reconcile(self, key: NamespacedName) -> float | None:
        """Reconcile the service `key`.

        Returns:
            Seconds after which to requeue even without an event; None: do not.

        Raises:
            KubeError: the reconcile failed and is to be retried.
        """
        try:
            view = await self._view(self._cached, key)
            if view is not None and view.intent.writes:
                view = await self._view(self._live, key)
            if view is not None:
                return await self._report_and_apply(view, key)
        except NotFound:
            # It was deleted meanwhile.
            pass
        self._forget(key)
        return None

    async def _view(self, reader: Reader, key: NamespacedName) -> _View | None:
        """Read a service and decide; None: it is gone or going, or another operator's."""
        isvc = await self._read(reader, key)
        if isvc is None:
            return None
        parsed, observation = await self._observe(reader, isvc, key)
        return _View(isvc, parsed, observation, decide(parsed, observation))

    async def _report_and_apply(self, view: _View, key: NamespacedName) -> float | None:
        # The status announces a change before it is made.
        after_s = await self._report(view.isvc, key, self._facts(view, key))
        if not view.intent.actions:
            self._states[key].failures.clear()
            return after_s
        await self._apply(view, key)
        return max(after_s or 0.0, self._pause_s(view, key)) if view.intent.writes else after_s

    async def _read(self, reader: Reader, key: NamespacedName) -> Object | None:
        """Read the InferenceService; None: it is gone or going, or another operator's."""
        try:
            isvc = await reader.get(INFERENCE_SERVICE, key)
        except KindMissing:
            return None
        except Forbidden as error:
            # Its namespace is gone, or the right to read it. When that comes back, watch and resync
            # find the service again.
            _log.warning("%s: %s", key, error)
            self._metrics.errors.labels(error.reason).inc()
            return None
        if isvc is None or is_being_deleted(isvc):
            self._others.forget(key)
            return None
        if await self._others.serve(isvc, key):
            return None
        uid = isvc["metadata"]["uid"]
        self._states.setdefault(key, ServiceState(uid)).uid = uid
        return isvc

    def _forget(self, key: NamespacedName) -> None:
        """Drop all state of a service that is gone, or another operator's."""
        self._metrics.forget(key)
        if state := self._states.pop(key, None):
            self._events.forget(state.uid)

    async def _observe(
        self, reader: Reader, isvc: Object, key: NamespacedName
    ) -> tuple[ParsedSpec, Observation]:
        """Read the desired and the observed state."""
        state = self._states[key]
        try:
            secret_key = await self._token_key.read()
            token = ray_token(secret_key, namespace=key.namespace, service=key.name, uid=state.uid)
            parsed = parse_spec(isvc, self._settings, token)
            is_stale = state.token.is_stale(
                token.secret,
                time.monotonic(),
                after_s=_CONFIRM_EVERY * self._settings.resync_seconds,
            )
            known = KnownToken(token=token, is_stale=is_stale)
            return parsed, await observe(reader, self._ray, key, parsed, uid=state.uid, token=known)
        except KubeError as error:
            state.failures.record(error)
            await self._report_unknown(isvc, key)
            raise

    async def _report_unknown(self, isvc: Object, key: NamespacedName) -> None:
        problem = self._states[key].failures.reportable()
        if problem is None:
            return
        document = unknown_document(
            isvc.get("status", {}),
            problem,
            generation=isvc["metadata"]["generation"],
            now=now_text(),
        )
        await self._reporter.report(isvc, document)

    def _facts(self, view: _View, key: NamespacedName) -> Facts:
        failure = self._states[key].failures.reportable()
        write_failure = failure or self._write_conflict(view, key)
        facts = collect_facts(*view, write_failure=write_failure, now=now_text())
        left_s = deadline_in_s(facts)
        return replace(facts, is_overdue=left_s is None or left_s <= 0)

    async def _report(self, isvc: Object, key: NamespacedName, facts: Facts) -> float | None:
        document = status_document(facts)
        await self._reporter.report(isvc, document)
        self._states[key].is_polled = not is_reconciled(document)
        polled = sum(state.is_polled for state in self._states.values())
        return requeue_after_s(facts, document, deadline_in_s=deadline_in_s(facts), polled=polled)

    def _write_conflict(self, view: _View, key: NamespacedName) -> Problem | None:
        """Return the reason for not writing although a write is due."""
        return write_conflict(view.intent.actions) if self._pause_s(view, key) else None

    def _pause_s(self, view: _View, key: NamespacedName) -> float:
        return self._states[key].writes.wait_s(view.desired_state, time.monotonic())

    async def _apply(self, view: _View, key: NamespacedName) -> None:
        if self._pause_s(view, key):
            return
        state = self._states[key]
        try:
            await apply(self._kube, view.intent.actions, view.observation, view.isvc)
        except KubeError as error:
            # The next reconcile reports it, before it retries.
            state.failures.record(error)
            raise
        state.failures.clear()
        for action in view.intent.actions:
            if isinstance(action, CreateToken):
                state.token.confirm(action.token.secret, time.monotonic())
        state.writes.take(view.desired_state, time.monotonic())
