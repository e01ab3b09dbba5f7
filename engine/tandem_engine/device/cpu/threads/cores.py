"""Cores and number of threads of a replica: decisions alone.

One thread a physical core: the kernels keep a core's arithmetic units busy, so a second thread on
its other logical CPU brings nothing, and shares its caches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Pin(StrEnum):
    """CPUs on which threads may run: the values of TANDEM_PIN."""

    AUTO = "auto"
    """The pool on cores of its own, if it can lock some; within them threads may move."""
    ON = "on"
    """Each thread on one core, also if others run there; for a machine without other load."""
    OFF = "off"
    """Wherever the kernel's scheduler puts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCores:
    """The processor, as far as this process can see it."""

    allowed: frozenset[int]
    """Logical CPUs that this process may run on; at least one."""
    num_online: int
    """Logical CPUs of the machine."""
    siblings: Mapping[int, frozenset[int]]
    """Logical CPU → all of its physical core; one that is missing is alone."""
    quota: float | None = None
    """CPU time that the cgroup grants, in CPUs; None: no limit."""
    is_container: bool = False
    """True if other containers may run beside this one, unseen."""

    @property
    def cores(self) -> list[int]:
        """One allowed logical CPU of each physical core, in order."""
        firsts = {min(self.siblings.get(cpu, {cpu}) & self.allowed | {cpu}) for cpu in self.allowed}
        return sorted(firsts)

    @property
    def most_threads(self) -> int:
        """Threads that can compute at the same time; at least 1.

        A part of a CPU counts for nothing: a thread more would use up the quota before its period
        ends, and all threads would then stand still.
        """
        cores = len(self.cores)
        return cores if self.quota is None else max(1, min(cores, int(self.quota)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadPlan:
    """Number and CPUs of the compute threads."""

    num_threads: int
    cpus: tuple[int, ...] = ()
    """Logical CPUs, one a thread; empty: anywhere."""
    own: bool = False
    """True if each thread stays on a CPU of its own; else all threads share the CPUs."""
    reason: str = ""
    """Reason for which they are not pinned."""

    def describe(self) -> str:
        """Describe the plan in one line, for the log."""
        count = f"Compute threads: {self.num_threads}"
        if not self.cpus:
            return f"{count}, not pinned: {self.reason}"
        each = ", one each" if self.own and self.num_threads > 1 else ""
        plural = "s" if len(self.cpus) > 1 else ""
        return f"{count}, pinned to CPU{plural} {format_cpus(self.cpus)}{each}"


def unpinned_reason(host: HostCores, pin: Pin, num_threads: int) -> str:
    """The reason why threads must not have cores of their own; empty: they may."""
    if pin is Pin.OFF:
        return "TANDEM_PIN is 'off'"
    if num_threads > len(host.cores):
        return f"this process may use only {len(host.cores)} cores"
    if pin is Pin.ON:
        return ""
    if host.quota is not None and host.quota < len(host.allowed):
        return (
            f"the cgroup grants the time of {host.quota:g} CPUs on any of {len(host.allowed)}, "
            f"which others use too"
        )
    return _container_reason(host, num_threads) if host.is_container else ""


def _container_reason(host: HostCores, num_threads: int) -> str:
    """The same in a container, which sees no locks of others."""
    if len(host.allowed) == host.num_online:
        return "this container may use all CPUs, and does not see which others use them, too"
    if num_threads < len(host.cores):
        return "this container does not see which of its CPUs another one has chosen"
    return ""


def threads_of_rank(num_threads: int, *, rank: int, num_ranks: int) -> int:
    """Threads of one of the ranks that share `num_threads`: the first have what is left over."""
    return max(1, num_threads // num_ranks + (rank < num_threads % num_ranks))


def fair_threads(desired: int, *, num_cores: int, num_replicas: int) -> int:
    """Threads of each of several replicas, none of which has cores of its own."""
    return max(1, min(desired, num_cores // max(1, num_replicas)))


def parse_cpus(text: str) -> frozenset[int]:
    """The CPUs of a kernel's list, such as "0-1,4".

    Raises:
        ValueError: The text is not such a list.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpus(cpus: Sequence[int]) -> str:
    """The opposite of `parse_cpus`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
