"""The compute threads of this process: how many, on which cores, and what TANDEM_… says of them."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.threads.core_locks import CoreLocks
from tandem_engine.device.cpu.threads.cores import (
    HostCores,
    Pin,
    ThreadPlan,
    fair_threads,
    threads_of_rank,
    unpinned_reason,
)

_LOG = logging.getLogger(__name__)

THREADS_VARIABLE: Final = "TANDEM_THREADS"
"""Exactly so many compute threads, in place of the manifest's."""
PIN_VARIABLE: Final = "TANDEM_PIN"
"""CPUs on which they may run: see `Pin`."""
RETRY_S: Final = 5.0
"""Interval at which a replica with fewer cores than desired looks for free ones."""

Apply = Callable[[ThreadPlan], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSettings:
    """Settings in the environment."""

    num_threads: int | None = None
    """Exactly so many; None: as the manifest says, or one a core."""
    pin: Pin = Pin.AUTO


def read_thread_settings(
    host: HostCores, environment: Mapping[str, str] = os.environ
) -> ThreadSettings:
    """The settings in TANDEM_THREADS and TANDEM_PIN.

    Raises:
        ConfigError: One of them is nothing of the kind.
    """
    return ThreadSettings(
        num_threads=_num_threads(host, environment.get(THREADS_VARIABLE)),
        pin=_pin(environment.get(PIN_VARIABLE)),
    )


def _num_threads(host: HostCores, text: str | None) -> int | None:
    if not text:
        return None
    most = len(host.allowed)
    if text.isascii() and text.isdigit() and 1 <= int(text) <= most:
        return int(text)
    raise ConfigError(
        f"{THREADS_VARIABLE} is '{text}'; it can be 1 to {most}, the CPUs that this process may "
        f"use; unset it for the number that the manifest asks for."
    )


def _pin(text: str | None) -> Pin:
    if not text:
        return Pin.AUTO
    if text in set(Pin):
        return Pin(text)
    raise ConfigError(f"{PIN_VARIABLE} is '{text}'; it can be {', '.join(Pin)}, or unset for auto.")


class ComputeThreads:
    """Chooses the threads of this process, and keeps looking for cores while some are missing.

    Replicas on one machine divide its cores by locks. Each takes free ones, at most as many as it
    desires, and computes on them. One that finds fewer than its fair share computes unpinned,
    with that many threads, and so do all where cores cannot be locked. They retry at intervals,
    since other replicas end. The ranks of a replica do the same, each with its share of
    the threads.

    Args:
        host: The processor.
        settings: Settings of the environment.
        locks: Those of this process.
        apply: Applies a plan.
    """

    def __init__(
        self, host: HostCores, settings: ThreadSettings, locks: CoreLocks, apply: Apply
    ) -> None:
        self._host = host
        self._settings = settings
        self._locks = locks
        self._apply = apply
        self._changing = threading.Lock()
        self._stop = threading.Event()
        self._desired = self._of_replica = 1
        self.plan = ThreadPlan(num_threads=1, reason="no number was requested")

    def choose(self, num_threads: int | None, *, rank: int = 0, num_ranks: int = 1) -> ThreadPlan:
        """Compute with a rank's share of `num_threads` threads; None: of one a core."""
        self.stop()
        with self._changing:
            most = self._host.most_threads
            of_replica = self._settings.num_threads or min(num_threads or most, most)
            self._desired = threads_of_rank(of_replica, rank=rank, num_ranks=num_ranks)
            self._of_replica = max(of_replica, num_ranks)
            self._apply_plan(self._first_plan())
        if not self.has_all_cores:
            self._retry_later()
        return self.plan

    def stop(self) -> None:
        """Release the cores, and look for no others."""
        self._stop.set()
        with self._changing:
            self._locks.release()

    @property
    def has_all_cores(self) -> bool:
        """True when other replicas cannot change the plan any more."""
        if self._unpinned_reason():
            return not self._counts_replicas
        return len(self.plan.cpus) == self._desired

    def retry(self) -> None:
        """Lock cores that have become free; without cores of its own, take the fair share."""
        if reason := self._unpinned_reason():
            plan = self._without_locks(reason)
            if plan != self.plan:
                self._apply_plan(plan)
                _LOG.info("%s", plan.describe())
            return
        held = self._locks.take(self._host.cores, self._desired)
        if len(held) > len(self.plan.cpus) and len(held) >= self._fewest:
            self._apply_plan(self._pinned(held))
            _LOG.info("%s", self.plan.describe())
        elif not self.plan.cpus:
            self._locks.release_cores()

    @property
    def _fewest(self) -> int:
        """Fewest cores of its own with which it computes faster than without."""
        return self._desired if self._settings.num_threads else self.plan.num_threads

    def _unpinned_reason(self) -> str:
        reason = unpinned_reason(self._host, self._settings.pin, self._of_replica)
        if not reason and not self._locks.is_possible:
            reason = f"it cannot lock cores, since {self._locks.folder} cannot be written"
        return reason

    @property
    def _counts_replicas(self) -> bool:
        """True if replicas that are not pinned divide the threads among them."""
        return self._settings.pin is not Pin.OFF and self._locks.is_possible

    def _first_plan(self) -> ThreadPlan:
        if reason := self._unpinned_reason():
            return self._without_locks(reason)
        held = self._locks.take(self._host.cores, self._desired)
        if len(held) >= self._fair_share(len(self._host.cores)):
            return self._pinned(held)
        return self._unpinned()

    def _pinned(self, cpus: list[int]) -> ThreadPlan:
        own = self._settings.pin is Pin.ON
        return ThreadPlan(num_threads=len(cpus), cpus=tuple(cpus), own=own)

    def _unpinned(self) -> ThreadPlan:
        self._locks.release_cores()
        return ThreadPlan(
            num_threads=self._fair_share(len(self._host.cores)),
            reason="other replicas on this machine have the cores",
        )

    def _without_locks(self, reason: str) -> ThreadPlan:
        """Plan threads where no cores can be locked."""
        count = (
            self._fair_share(self._host.most_threads) if self._counts_replicas else self._desired
        )
        return ThreadPlan(num_threads=count, reason=reason)

    def _fair_share(self, num_cores: int) -> int:
        """Threads of each replica if all are alike; from here on others count this one."""
        if self._settings.num_threads:
            self._locks.num_replicas()
            return self._desired
        count = self._locks.num_replicas()
        return fair_threads(self._desired, num_cores=num_cores, num_replicas=count)

    def _apply_plan(self, plan: ThreadPlan) -> None:
        self.plan = plan
        self._apply(plan)

    def _retry_later(self) -> None:
        self._stop = stop = threading.Event()

        def retry() -> None:
            while not self.has_all_cores and not stop.wait(RETRY_S):
                with self._changing:
                    if not stop.is_set():
                        # Without a file descriptor left nothing can be read: the plan stays.
                        with suppress(OSError):
                            self.retry()

        threading.Thread(target=retry, name="tandem-cores", daemon=True).start()
