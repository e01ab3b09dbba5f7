"""One controller on one load with one seed; a task may run in another process."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import Final

from benchmarks.autoscaling.capacities import MixedCapacities, measure
from benchmarks.autoscaling.controllers import (
    ControllerSettings,
    initial_replicas,
    make_controller,
    reads_capacity,
)
from benchmarks.autoscaling.faults import FAULTS, NONE, MeasuringController, with_fault
from benchmarks.autoscaling.loads import make_load, tick_s
from benchmarks.autoscaling.replicas import SchedulerReplicas, make_flows
from benchmarks.scheduling.policies import with_slo
from benchmarks.scheduling.predicted import shape_of
from benchmarks.serving.settings import LatencyTargets
from tandem_engine.scheduler.latency.capacity import ReplicaLimits
from tandem_engine.simulate.account import FleetResult
from tandem_engine.simulate.fleet import Controller, Fleet, FleetSettings, MakeReplicas
from tandem_engine.simulate.load_profile import LoadProfile
from tandem_engine.simulate.machines import Noise
from tandem_engine.simulate.observation import Target
from tandem_engine.simulate.performance_curve import PerformanceCurve
from tandem_engine.simulate.predictions import FlowPredictor
from tandem_engine.simulate.workload import Arrival, Shape
from tandem_operator.autoscaler.document import ExplainedDecision
from tandem_operator.autoscaler.measure import Targets
from tandem_operator.scaling_law.policy import ScalingPolicy

_MOST_SCHEDULERS: Final = 8
_MOST_SCHEDULERS_S: Final = 3600.0
_MILLISECONDS: Final = 1e3
_SPREAD: Final = 0.2
"""Standard deviation of the logarithm of a cold start."""
_INITIAL_LOAD: Final = 0.8
"""Share of the capacity at which a fleet begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What all runs of a benchmark share."""

    trace: Sequence[Arrival]
    curve: PerformanceCurve
    targets: LatencyTargets
    model: str
    """auto, scheduler or flow."""
    cold_start_s: float
    period_s: float
    window_s: float
    failures_s: Sequence[float]
    room: float
    """Highest number of replicas, as a multiple of a task's size."""
    hours: float | None
    """Only so much of each load; None: all of it."""
    warm_up: bool = False
    """Each load comes twice, and only the second time counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run."""

    load: str
    size: int
    """Replicas that the busiest moments of the load need, about."""
    controller: str
    seed: int
    fault: str | None = None
    """A fault, under which the operator's own code measures and decides; None: the controller sees
    the fleet itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """One controller on one load."""

    task: Task
    model: str
    """scheduler or flow."""
    duration_s: float
    grows_s: float | None
    """When the load grows at once; None: it has no such moment."""
    stays_s: float
    cold_start_s: float
    period_s: float
    wall_s: float
    """Seconds that the simulation took."""
    ttft_target_s: float
    result: FleetResult
    explained: Sequence[ExplainedDecision] = ()
    """Under a fault the decisions, explained."""


def run_tasks(
    options: FleetOptions, tasks: Sequence[Task], *, num_processes: int
) -> Iterator[FleetRun]:
    """Run the tasks, and yield them in their order."""
    if num_processes == 1:
        yield from (run_task(options, task) for task in tasks)
        return
    with ProcessPoolExecutor(num_processes, initializer=_keep_options, initargs=(options,)) as pool:
        yield from pool.map(_run_kept, tasks)


def run_task(options: FleetOptions, task: Task) -> FleetRun:
    """Run one task; the same seed gives the same result."""
    curve, targets = options.curve, options.targets
    load = _cut(make_load(task.load, options.trace, curve, task.size), options.hours)
    ttft, tpot = targets_of(targets)
    warm_up_s = load.duration_s if options.warm_up else 0.0
    load = load.twice() if options.warm_up else load
    # Loads differ by the seed alone: each controller has the same arrivals.
    arrivals, starts = (Random(f"{task.seed} {part}") for part in ("arrivals", "starts"))  # noqa: S311
    is_flow = _is_flow(options.model, task.size, load)
    make, predict = _replicas(options, load, task, is_flow=is_flow)
    requests = load.flows(tick_s(load), arrivals) if is_flow else load.requests(arrivals)
    most = ceil(options.room * task.size)
    settings = ControllerSettings(
        ttft=ttft,
        tpot=tpot,
        min_replicas=1,
        max_replicas=most,
        period_s=options.period_s,
        window_s=options.window_s,
        cold_start_s=options.cold_start_s,
        capacity=lambda shape: curve.capacity / curve.work(shape),
        load=load,
    )
    fleet_settings = FleetSettings(
        ttft=ttft,
        tpot=tpot,
        max_replicas=most,
        initial_replicas=_initial(task.controller, load, curve, most),
        period_s=options.period_s,
        window_s=options.window_s,
        failures_s=[warm_up_s + at_s for at_s in options.failures_s],
        warm_up_s=warm_up_s,
    )
    controller = _controller(task, settings)
    fleet = Fleet(
        with_fault(fleet_settings, task.fault or NONE),
        make,
        controller,
        cold_start_s=lambda: options.cold_start_s * starts.lognormvariate(0.0, _SPREAD),
        predict=predict,
    )
    begun = time.perf_counter()
    result = fleet.run(requests, load.duration_s)
    return FleetRun(
        task=task,
        model="flow" if is_flow else "scheduler",
        duration_s=load.duration_s - warm_up_s,
        grows_s=load.grows_s,
        stays_s=load.stays_s,
        cold_start_s=options.cold_start_s,
        period_s=options.period_s,
        wall_s=time.perf_counter() - begun,
        ttft_target_s=ttft.target_s,
        result=result,
        explained=controller.explained if isinstance(controller, MeasuringController) else (),
    )


def _controller(task: Task, settings: ControllerSettings) -> Controller:
    if task.fault is None:
        return make_controller(task.controller, settings)
    return MeasuringController(
        ScalingPolicy(
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            settle_s=settings.window_s,
        ),
        Targets(ttft_s=settings.ttft.target_s, tpot_s=settings.tpot.target_s),
        FAULTS[task.fault],
        cold_start_s=settings.cold_start_s,
        window_s=settings.window_s,
    )


def targets_of(targets: LatencyTargets) -> tuple[Target, Target]:
    """Return the targets of TTFT and TPOT."""
    ttft_s = (targets.ttft_ms or 0.0) / _MILLISECONDS
    tpot_s = (targets.tpot_ms or 0.0) / _MILLISECONDS
    return Target(target_s=ttft_s), Target(target_s=tpot_s)


def _replicas(
    options: FleetOptions, load: LoadProfile, task: Task, *, is_flow: bool
) -> tuple[MakeReplicas, FlowPredictor | None]:
    """Return what makes replicas, and what predicts for them where they do not."""
    curve, policy = options.curve, with_slo(options.targets)
    measures = task.fault is not None or reads_capacity(task.controller)
    if not is_flow:
        rng = Random(f"{task.seed} noise")  # noqa: S311  # load, not secrets
        replicas = SchedulerReplicas(
            policy=policy,
            machine=curve.machine,
            noise=Noise(),
            rng=rng,
            measure=measure if measures else None,
        )
        return replicas, None
    if not measures:
        return lambda count, now: make_flows(curve, count, now), None
    shapes = {stream.mean_shape: _arrivals(stream.shapes) for stream in load.streams}
    predictor = FlowPredictor(
        machine=curve.machine,
        shapes={mean: shape_of(each) for mean, each in shapes.items()},
        limits=ReplicaLimits.of(policy.schedule, curve.machine.num_blocks),
        slo=policy.slo,
        measure=MixedCapacities(
            {stream.mean_shape: stream.shapes for stream in load.streams}, policy, curve.machine
        ),
    )
    return lambda count, now: make_flows(curve, count, now), predictor


def _arrivals(shapes: Sequence[Shape]) -> list[Arrival]:
    return [Arrival(0.0, shape) for shape in shapes]


def _is_flow(model: str, size: int, load: LoadProfile) -> bool:
    if model != "auto":
        return model == "flow"
    if len(load.streams) > 1:
        # Flows have mean lengths: the long prompts that come together would be none.
        return False
    return size > _MOST_SCHEDULERS or load.duration_s > _MOST_SCHEDULERS_S


def _initial(controller: str, load: LoadProfile, curve: PerformanceCurve, most: int) -> int:
    """Return the replicas that the load needs when it begins."""
    own = initial_replicas(controller, most)
    if own is not None:
        return min(own, most)
    work = sum(stream.rate(0.0) * curve.work(stream.mean_shape) for stream in load.streams)
    return min(most, max(1, ceil(work / (_INITIAL_LOAD * curve.capacity))))


def _cut(load: LoadProfile, hours: float | None) -> LoadProfile:
    if hours is None:
        return load
    return replace(load, duration_s=min(load.duration_s, hours * 3600.0))


_OPTIONS: list[FleetOptions] = []
"""Of this process: they are large, and sent once."""


def _keep_options(options: FleetOptions) -> None:
    _OPTIONS[:] = [options]


def _run_kept(task: Task) -> FleetRun:
    return run_task(_OPTIONS[0], task)
