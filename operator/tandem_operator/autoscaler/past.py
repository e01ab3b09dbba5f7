"""Answers of Prometheus about a span of time → the moments of a service's past; pure."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tandem_operator.autoscaler.measure import Replica, Targets, measure
from tandem_operator.autoscaler.signals import (
    Sample,
    Scope,
    Signals,
    not_an_answer,
    result_of,
    signals_of,
)
from tandem_operator.scaling_law.hindsight import PastLoad
from tandem_operator.scaling_law.observation import Observation
from tandem_operator.scaling_law.replay import Recorded

NUMBERS: Final = {
    "desired": "tandem_operator_autoscaler_desired_replicas",
    "ready": "tandem_operator_autoscaler_ready_replicas",
}
"""Series of the operator about the number of replicas."""


class _Line(msgspec.Struct):
    values: list[tuple[float, str]] = []
    metric: dict[str, str] = {}


_MATRIX: Final = msgspec.json.Decoder(list[_Line])


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of replicas at one moment, as the operator exposed them."""

    desired: int
    ready: int


def numbers_query(scope: Scope) -> str:
    """Return the query for the numbers of replicas of a service."""
    # The operator's own namespace may be in the label, and the service's in exported_namespace.
    selectors = [
        f'{{{label}="{scope.namespace}",name="{scope.service}"}}'
        for label in ("exported_namespace", "namespace")
    ]
    return " or ".join(
        f"label_replace(max({series}{selectors[0]} or {series}{selectors[1]}), "
        f'"signal", "{signal}", "", "")'
        for signal, series in NUMBERS.items()
    )


def read_matrix(body: bytes) -> dict[float, list[Sample]]:
    """Return the samples of a range query by their moment, in order.

    Raises:
        InvalidAnswer: it is no such answer.
    """
    try:
        lines = _MATRIX.decode(result_of(body, "matrix"))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise not_an_answer(error) from error
    moments: dict[float, list[Sample]] = {}
    for line in lines:
        for value in line.values:
            moments.setdefault(value[0], []).append(Sample(value=value, metric=line.metric))
    return dict(sorted(moments.items()))


def read_numbers(samples: Mapping[float, list[Sample]]) -> dict[float, Numbers]:
    """Return the numbers of replicas by moment, where the operator exposed both."""
    numbers = {}
    for at_s, group in samples.items():
        values = signals_of(group).values
        desired, ready = values.get("desired", math.nan), values.get("ready", math.nan)
        if math.isfinite(desired) and math.isfinite(ready):
            numbers[at_s] = Numbers(round(desired), round(ready))
    return numbers


def moments(
    samples: Mapping[float, list[Sample]],
    numbers: Mapping[float, Numbers],
    targets: Targets,
    *,
    max_age_s: float,
) -> Iterator[Recorded]:
    """Yield the moments of the past.

    Where the operator exposed no numbers, each replica that was scraped counts as one that answers.
    """
    for at_s, group in samples.items():
        signals = signals_of(group)
        if signals.pods or at_s in numbers:
            yield Recorded(at_s, _observation(signals, numbers.get(at_s), targets, max_age_s))


def past_loads(
    samples: Mapping[float, list[Sample]], targets: Targets, *, max_age_s: float
) -> list[PastLoad]:
    """Return the loads of the moments whose figures can be trusted, the oldest first."""
    recorded = moments(samples, {}, targets, max_age_s=max_age_s)
    trusted = (record for record in recorded if record.observation.find_problem(max_age_s) is None)
    loads = (record.observation.load_at(record.at_s) for record in trusted)
    return [load for load in loads if load is not None]


def _observation(
    signals: Signals, numbers: Numbers | None, targets: Targets, max_age_s: float
) -> Observation:
    numbers = numbers or Numbers(len(signals.pods), len(signals.pods))
    # Pods stay in Prometheus' answers for some minutes after their end.
    newest = sorted(signals.pods, key=lambda pod: signals.pods[pod].scraped_at, reverse=True)
    scraped = newest[: numbers.ready] if numbers.ready else newest
    replicas = [Replica(pod, is_ready=True, is_fresh=True) for pod in sorted(scraped)]
    measured = measure(signals, targets, replicas, numbers.desired, max_age_s=max_age_s)
    observation = measured.observation
    starting = max(observation.desired - observation.ready, 0)
    # Requests to a service without replicas are not part of the past.
    return replace(observation, starting=starting, refused=0)
