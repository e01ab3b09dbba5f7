"""Leader election by a Lease: one process writes, the others are on standby.

A leader that cannot renew in time gives up before another process may acquire. A lease has expired
when it has not changed for its duration on this machine's own clock, so the clocks of two machines
need not agree.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem_operator.clock import now_micro_text
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import KubeError, Transient
from tandem_operator.k8s.kinds import LEASE
from tandem_operator.k8s.objects import NamespacedName, Object

DURATION_S: Final = 15
"""Seconds after which a lease that is not renewed may be acquired."""

RENEW_S: Final = 2.0
"""client-go's; a silence of the API server of RENEW_WITHIN_S less this is always survived."""

RENEW_WITHIN_S: Final = 10.0
"""Seconds without a renewal after which the leader gives up."""

RETRY_S: Final = 2.0
_REQUEST_S: Final = 4.0
_AFTER_FAILURE_S: Final = 1.0
_log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """This process no longer leads; the text is the reason."""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A lease as last observed, and since when it has not changed."""

    holder: str
    renewed: str
    since: float

    def may_be_acquired(self, identity: str, now: float) -> bool:
        """Return True when it is free, held by `identity`, or expired."""
        return self.holder in {"", identity} or now - self.since > DURATION_S


def observe_lease(
    lease: Mapping[str, Any], before: ObservedLease | None, now: float
) -> ObservedLease:
    """Observe the lease; `since` stays while it is not renewed."""
    spec = lease.get("spec", {})
    holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
    if before and (before.holder, before.renewed) == (holder, renewed):
        return before
    return ObservedLease(holder, renewed, now)


class LeaderElector:
    """Acquires, renews and releases the lease for this process."""

    def __init__(self, kube: KubeClient, key: NamespacedName, identity: str) -> None:
        self._kube = kube
        self._lease_name = key
        self.identity = identity
        """Name of this process as a holder."""

        self._lease: Object | None = None
        self._valid_until = 0.0

    async def acquire(self, on_answer: Callable[[], None]) -> None:
        """Wait until this process leads; `on_answer` is called when the API server answers."""
        observed: ObservedLease | None = None
        while True:
            try:
                async with asyncio.timeout(_REQUEST_S):
                    lease = await self._read()
                    on_answer()
                    observed = observe_lease(lease, observed, time.monotonic())
                    if observed.may_be_acquired(self.identity, time.monotonic()):
                        await self._write(lease, self.identity)
                        return
            except (Transient, TimeoutError) as error:
                _log.info("cannot acquire the lease %s yet: %s", self._lease_name, error)
            except KubeError as error:
                _log.warning("cannot acquire the lease %s: %s", self._lease_name, error)
            await asyncio.sleep(RETRY_S * random.uniform(0.8, 1.2))  # noqa: S311  # spread, no secret

    async def renew(self) -> None:
        """Renew the lease until it is lost.

        Raises:
            LeaseLost: another process holds it, or it could not be renewed in time.
        """
        problem: str | None = None
        while True:
            await asyncio.sleep(RENEW_S if problem is None else _AFTER_FAILURE_S)
            if not self.is_valid():
                raise LeaseLost(
                    f"the lease {self._lease_name} was not renewed for {RENEW_WITHIN_S:.0f} s: "
                    f"{problem or 'this process did not run'}"
                )
            problem = await self._try_to_renew()

    def is_valid(self) -> bool:
        """Return True while no other process can have acquired the lease."""
        return time.monotonic() < self._valid_until

    async def release(self) -> None:
        """Free the lease, so that another process leads at once."""
        if self._lease is None:
            return
        try:
            async with asyncio.timeout(_REQUEST_S):
                await self._write(self._lease, "")
                self._valid_until = 0.0
        except (KubeError, TimeoutError) as error:
            _log.warning(
                "cannot release the lease %s, which expires by itself: %s", self._lease_name, error
            )

    async def _try_to_renew(self) -> str | None:
        """Try once to renew; None: renewed, otherwise the reason."""
        left_s = self._valid_until - time.monotonic()
        try:
            async with asyncio.timeout(min(_REQUEST_S, left_s)):
                lease = self._lease or await self._read_own()
                await self._write(lease, self.identity)
        except (KubeError, TimeoutError) as error:
            # It may have been written all the same: read the holder before the next try.
            self._lease = None
            return str(error) or "no answer in time"
        return None

    async def _read_own(self) -> Object:
        lease = await self._read()
        holder = lease.get("spec", {}).get("holderIdentity")
        if holder != self.identity:
            raise LeaseLost(f"the lease {self._lease_name} is now held by '{holder}'")
        return lease

    async def _read(self) -> Object:
        return await self._kube.get(LEASE, self._lease_name) or _new_lease(self._lease_name)

    async def _write(self, lease: Object, holder: str) -> None:
        spec = {**lease.get("spec", {}), "holderIdentity": holder, "renewTime": now_micro_text()}
        if lease.get("spec", {}).get("holderIdentity") != holder and holder:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
            spec["leaseDurationSeconds"] = DURATION_S
        manifest = {**lease, "spec": spec}
        sent_at = time.monotonic()
        if "resourceVersion" in lease["metadata"]:
            self._lease = await self._kube.replace(LEASE, manifest)
        else:
            self._lease = await self._kube.create(LEASE, manifest)
        self._valid_until = sent_at + RENEW_WITHIN_S


def _new_lease(key: NamespacedName) -> Object:
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.name,
        "metadata": {"name": key.name, "namespace": key.namespace},
    }
