"""The autoscalers that are compared: Tandem's decisions, and the laws of five others.

Each has one parameter, by which it buys attainment with replica-hours; `--tune` tries its grid.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from benchmarks.autoscaling.controllers import ControllerSettings, register
from benchmarks.autoscaling.law_controller import LawController
from benchmarks.autoscaling.laws import (
    Law,
    aibrix_apa,
    hpa_on_use,
    keda_on_waiting,
    llmd_slo,
    ray_serve,
)
from tandem_engine.simulate.fleet import Controller
from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.policy import ScalingPolicy


@register("tandem", (0.02, 0.05, 0.2), below=1.0)
def _tandem(settings: ControllerSettings) -> Controller:
    # As the operator's loop has it: latencies reach back over the window they are measured in.
    policy = replace(_policy(settings), settle_s=settings.window_s)
    if settings.value is not None:
        policy = replace(policy, late_share=settings.value)
    return _controller(settings, decide, policy)


@register("hpa", (0.3, 0.5, 0.6, 0.7, 0.9), reads_capacity=False)
def _hpa(settings: ControllerSettings) -> Controller:
    return _law(settings, lambda value: partial(hpa_on_use, target=value), hpa_on_use)


@register("keda", (0.1, 0.5, 1.0, 2.0, 10.0), reads_capacity=False)
def _keda(settings: ControllerSettings) -> Controller:
    return _law(settings, lambda value: partial(keda_on_waiting, threshold=value), keda_on_waiting)


@register("ray-serve", (8.0, 12.0, 14.0, 16.0, 20.0), reads_capacity=False)
def _ray_serve(settings: ControllerSettings) -> Controller:
    return _law(
        settings, lambda value: partial(ray_serve, target_ongoing_requests=value), ray_serve
    )


@register("llm-d", (0.3, 0.4, 0.7, 0.8, 0.9), reads_capacity=False)
def _llmd(settings: ControllerSettings) -> Controller:
    return _law(settings, lambda value: partial(llmd_slo, up_at=value), llmd_slo)


@register("aibrix", (0.04, 0.06, 0.07, 0.08, 0.09), reads_capacity=False)
def _aibrix(settings: ControllerSettings) -> Controller:
    return _law(settings, lambda value: partial(aibrix_apa, target=value), aibrix_apa)


def _law(
    settings: ControllerSettings, with_value: Callable[[float], Law], default: Law
) -> Controller:
    law = default if settings.value is None else with_value(settings.value)
    return _controller(settings, law, _policy(settings))


def _policy(settings: ControllerSettings) -> ScalingPolicy:
    return ScalingPolicy(min_replicas=settings.min_replicas, max_replicas=settings.max_replicas)


def _controller(settings: ControllerSettings, law: Law, policy: ScalingPolicy) -> Controller:
    return LawController(
        law,
        policy,
        ttft_target_s=settings.ttft.target_s,
        tpot_target_s=settings.tpot.target_s,
        cold_start_s=settings.cold_start_s,
    )
