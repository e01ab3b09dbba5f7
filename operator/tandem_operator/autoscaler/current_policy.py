"""spec.scaling and the operator's settings → the policy of this moment."""

from collections.abc import Iterable, Iterator
from typing import Final

from tandem_engine.api.slo import DEFAULT_PERCENTILE, Slo
from tandem_operator.clock import UnknownTimeZone, utc_offset_s
from tandem_operator.render.settings import AutoscalingSettings
from tandem_operator.scaling_law.policy import ScalingPolicy
from tandem_operator.scaling_law.schedule import (
    ScheduledMinimum,
    minimum_at,
    parse_cron,
)
from tandem_serve.api.scaling import ScalingSpec
from tandem_serve.api.spec import InferenceService

CREDIT: Final = 2.0
"""Measured cold starts for which a replica is waited for."""

_LEAST_CREDIT_S: Final = 60.0


def scaling_policy(
    scaling: ScalingSpec,
    settings: AutoscalingSettings,
    slo: Slo,
    *,
    cold_start_s: float,
    now: float,
) -> ScalingPolicy:
    """Return the bounds, steps and windows at `now`, in Unix time."""
    maximum = scaling.max_replicas or scaling.min_replicas
    up, down = scaling.behavior.scale_up, scaling.behavior.scale_down
    return ScalingPolicy(
        min_replicas=min(_minimum(scaling, cold_start_s, now), maximum),
        max_replicas=maximum,
        max_step_up=up.max_step,
        max_step_down=down.max_step,
        up_window_s=up.stabilization_window_seconds,
        down_window_s=down.stabilization_window_seconds,
        # Measured latencies reach back as far as the window.
        settle_s=settings.window_seconds,
        max_age_s=max_age_s(settings),
        late_share=_late_share(slo),
    )


def _late_share(slo: Slo) -> float:
    """Return the share of the requests that may miss the stricter target."""
    percentiles = [target.percentile for target in (slo.ttft, slo.tpot) if target]
    return 1.0 - max(percentiles, default=DEFAULT_PERCENTILE) / 100.0


def start_credit_s(service: InferenceService, cold_start_s: float) -> float:
    """Return the seconds for which a replica that does not answer counts as capacity.

    `cold_start_s` is the measured one; 0: none was.
    """
    if not cold_start_s:
        return float(service.spec.progress_deadline_seconds)
    return max(_LEAST_CREDIT_S, CREDIT * cold_start_s)


def max_age_s(settings: AutoscalingSettings) -> float:
    """Return the seconds from which on a measurement is stale."""
    return max(60.0, 2.0 * settings.period_seconds)


def max_gap_s(settings: AutoscalingSettings) -> float:
    """Return the seconds between two decisions from which on a window begins again."""
    return max(90.0, 4.0 * settings.period_seconds)


def unknown_time_zones(scaling: ScalingSpec) -> tuple[str, ...]:
    """Return a sentence for each unknown time zone of the schedule; its minimums do not hold."""
    return tuple(_unknown(dict.fromkeys(window.time_zone for window in scaling.schedule)))


def _unknown(time_zones: Iterable[str]) -> Iterator[str]:
    for name in time_zones:
        try:
            utc_offset_s(name, 0.0)
        except UnknownTimeZone as error:
            yield str(error)


def _minimum(scaling: ScalingSpec, cold_start_s: float, now: float) -> int:
    if not scaling.schedule:
        return scaling.min_replicas
    offsets = {entry.time_zone: _offset_s(entry.time_zone, now) for entry in scaling.schedule}
    known = {name: offset for name, offset in offsets.items() if offset is not None}
    schedule = [entry for entry in _schedule(scaling) if entry.time_zone in known]
    return minimum_at(schedule, scaling.min_replicas, now, known, lead_s=cold_start_s)


def _schedule(scaling: ScalingSpec) -> Iterator[ScheduledMinimum]:
    for entry in scaling.schedule:
        yield ScheduledMinimum(
            cron=parse_cron(entry.start),
            duration_s=entry.duration_s,
            time_zone=entry.time_zone,
            min_replicas=entry.min_replicas,
        )


def _offset_s(time_zone: str, now: float) -> float | None:
    try:
        return utc_offset_s(time_zone, now)
    except UnknownTimeZone:
        return None
