"""Policies against each other on the same load: each at the highest rate that it sustains."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from math import inf
from random import Random
from typing import Final

from benchmarks.scheduling.capacity import SHARE, Run, figures, highest_sustained
from benchmarks.scheduling.machines import find_machine
from benchmarks.scheduling.policies import Policy, policies_for
from benchmarks.scheduling.workload import at_rate
from benchmarks.serving.outcome import Outcome
from benchmarks.serving.settings import LatencyTargets
from tandem_engine.simulate.machines import Noise, NoisyMachine
from tandem_engine.simulate.replica import Completion
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.simulator import MissLimit, Simulator
from tandem_engine.simulate.workload import Arrival, clip

_START_RATE: Final = 1.0
_MILLISECONDS: Final = 1e3
_SPANS: Final = 5.0
"""A load lasts at least this many times the target TTFT: a shorter one is a single burst."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One policy on one load; plain data, for it may run in another process."""

    load_name: str
    load: Sequence[Arrival]
    machine: str
    targets: LatencyTargets
    policy: Policy
    noise: Noise
    seed: int
    precision: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """Result of one policy on one load."""

    load_name: str
    machine: str
    targets: LatencyTargets
    policy: str
    is_static: bool
    run: Run | None
    """At the highest rate that it sustains; None: it sustains none."""

    @property
    def goodput(self) -> float:
        """Good requests a second there."""
        return self.run.goodput if self.run else 0.0


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """All policies under the same targets and load."""

    entries: Sequence[PolicyResult]

    @property
    def name(self) -> str:
        """Machine, load and targets of the comparison."""
        first = self.entries[0]
        return (
            f"{first.machine}, {first.load_name}, TTFT {first.targets.ttft_ms:g} ms, "
            f"TPOT {first.targets.tpot_ms:g} ms"
        )

    @property
    def best_static(self) -> PolicyResult | None:
        """The best policy without an SLO; None: none was measured."""
        static = [entry for entry in self.entries if entry.is_static]
        return max(static, key=lambda entry: entry.goodput, default=None)

    def ratio(self, entry: PolicyResult) -> float | None:
        """Goodput of an entry over that of the best static one; None: that one has none."""
        best = self.best_static
        return entry.goodput / best.goodput if best and best.goodput else None


def tasks_for(
    loads: Iterable[tuple[str, Sequence[Arrival]]],
    pairs: Iterable[LatencyTargets],
    *,
    machine: str,
    chunks: Sequence[int],
    noise: Noise,
    seed: int,
) -> list[Task]:
    """One task for every load, pair of targets and policy; loads are cut to what fits there."""
    longest = find_machine(machine).max_seq_len
    pairs = list(pairs)
    return [
        Task(
            load_name=name,
            load=clip(load, longest)[0],
            machine=machine,
            targets=targets,
            policy=policy,
            noise=noise,
            seed=seed,
        )
        for name, load in loads
        for targets in pairs
        for policy in policies_for(targets, chunks)
    ]


def find_capacities(tasks: Sequence[Task], *, num_processes: int) -> Iterator[PolicyResult]:
    """Carry tasks out, and yield what they came to in their order."""
    if num_processes == 1:
        yield from map(find_capacity, tasks)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        yield from pool.map(find_capacity, tasks)


def find_capacity(task: Task) -> PolicyResult:
    """Seek the highest rate that a policy sustains."""
    return PolicyResult(
        load_name=task.load_name,
        machine=task.machine,
        targets=task.targets,
        policy=task.policy.name,
        is_static=task.policy.is_static,
        run=highest_sustained(
            lambda rate: run_at(task, rate),
            start=_START_RATE,
            precision=task.precision,
            most=_highest_rate(task),
        ),
    )


def _highest_rate(task: Task) -> float:
    ttft_ms = task.targets.ttft_ms
    return inf if ttft_ms is None else len(task.load) / (_SPANS * ttft_ms / 1e3)


def run_at(task: Task, rate: float, *, ends_early: bool = True) -> Run | None:
    """Run a task's load at one rate; None: it was broken off as not sustained.

    Args:
        task: The task to run.
        rate: Requests a second.
        ends_early: Break off once more than a tenth of the requests have missed a target.
    """
    most = (1.0 - SHARE) * len(task.load)
    targets = task.targets
    limit = MissLimit(_seconds(targets.ttft_ms), _seconds(targets.tpot_ms), most)
    simulator = Simulator(replica_for(task), limit if ends_early else None)
    seen = simulator.run(at_rate(task.load, rate))
    if seen.ended_early:
        return None
    return figures(
        [outcome_of(request) for request in seen.requests],
        targets,
        rate=rate,
        wall_s=seen.wall_s,
        num_preemptions=seen.num_preemptions,
        num_steps=seen.num_steps,
    )


def replica_for(task: Task) -> SchedulerReplica:
    """Return a new replica with a task's policy on its machine."""
    machine = find_machine(task.machine)
    rng = Random(task.seed)  # noqa: S311  # load, not secrets
    return SchedulerReplica(
        task.policy.schedule,
        task.policy.slo,
        NoisyMachine(machine, task.noise, rng),
        num_blocks=machine.num_blocks,
    )


def outcome_of(request: Completion) -> Outcome:
    """Return a simulated request as an outcome."""
    return Outcome(
        shape=request.shape,
        due_s=request.arrived_s,
        end_s=request.at_s,
        event_times_s=(request.first_token_s, request.at_s),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / _MILLISECONDS


def group_by_load(entries: Iterable[PolicyResult]) -> list[PolicyComparison]:
    """Entries that belong together; they stand next to each other."""
    groups = groupby(entries, key=lambda each: (each.machine, each.load_name, each.targets))
    return [PolicyComparison(list(group)) for _, group in groups]
