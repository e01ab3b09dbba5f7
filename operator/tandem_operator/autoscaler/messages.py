"""Decisions as sentences; pure."""

from collections.abc import Callable, Mapping
from typing import Final

from tandem_operator.scaling_law.decision import Decision, DecisionReason

Inputs = Mapping[str, float | None]

_R: Final = DecisionReason


def message_of(decision: Decision, note: str = "") -> str:
    """Return the reason of a decision as one sentence; `note` has what the figures do not."""
    text = _TEXTS[decision.reason](decision.inputs)
    if decision.reason.is_hold and decision.recommended != decision.desired:
        text = f"{text}; by the measurements alone it would be {decision.recommended}"
    return f"{text}: {note}" if note else text


def _constant(text: str) -> Callable[[Inputs], str]:
    return lambda _: text


def _ratio(name: str, label: str) -> Callable[[Inputs], str]:
    def text(inputs: Inputs) -> str:
        return f"{label} is {_number(inputs, name)} times its target"

    return text


def _overload(inputs: Inputs) -> str:
    return (
        f"{_number(inputs, 'arrival_rate')} requests/s arrive, a replica is predicted to carry "
        f"{_number(inputs, 'capacity_per_replica')}; the rule in force is "
        f"{_number(inputs, 'rule_factor')} times the highest load of the last "
        f"{_number(inputs, 'rule_window_s')} s: {_number(inputs, 'needed')} are needed"
    )


def _underused(inputs: Inputs) -> str:
    return (
        f"{_number(inputs, 'arrival_rate')} requests/s arrive, and for "
        f"{_number(inputs, 'down_window_s')} s fewer replicas have been predicted to keep the "
        "targets"
    )


def _infeasible(inputs: Inputs) -> str:
    if inputs.get("capacity_per_replica") == 0:
        return "the replicas predict that not even a single request keeps the targets"
    return (
        "a request that has a replica for itself is predicted to take "
        f"{_number(inputs, 'zero_load_ttft_s')} s to its first token and "
        f"{_number(inputs, 'zero_load_tpot_s')} s a token, more than a target: no number of "
        "replicas keeps it; raise the target"
    )


def _refused(inputs: Inputs) -> str:
    return f"{_number(inputs, 'refused')} requests were refused, since there is no replica"


def _turned_away(inputs: Inputs) -> str:
    return (
        f"{_number(inputs, 'refused_rate')} requests/s are refused with 429, as the replicas' "
        f"slots are taken, and {_number(inputs, 'arrival_rate')} are taken"
    )


def _no_traffic(inputs: Inputs) -> str:
    if inputs.get("ongoing_requests"):
        return f"no request arrives, and {_number(inputs, 'ongoing_requests')} are in process"
    return "no request arrives"


def _starting(inputs: Inputs) -> str:
    return f"{_number(inputs, 'pending')} replicas are starting"


def _lost(inputs: Inputs) -> str:
    return f"{_number(inputs, 'lost')} replicas carry nothing, too many for others in their place"


def _number(inputs: Inputs, name: str) -> str:
    value = inputs.get(name)
    return "an unknown number of" if value is None else f"{value:.3g}"


_TEXTS: Final[Mapping[DecisionReason, Callable[[Inputs], str]]] = {
    _R.NO_TRAFFIC: _no_traffic,
    _R.REQUESTS_REFUSED: _turned_away,
    _R.REQUEST_AT_ZERO: _refused,
    _R.WITHIN_TARGETS: _constant("the targets are kept"),
    _R.METRICS_MISSING: _constant("the metrics lack what a decision needs"),
    _R.METRICS_STALE: _constant("the metrics are too old"),
    _R.METRICS_INVALID: _constant("a figure is not a number, infinite, negative or above 1"),
    _R.METRICS_DISAGREE: _constant("the metrics contradict each other"),
    _R.METRICS_UNREACHABLE: _constant("Prometheus cannot be asked"),
    _R.TOO_FEW_SAMPLES: _constant("too few requests were answered to judge the latencies"),
    _R.REPLICAS_STARTING: _starting,
    _R.REPLICAS_LOST: _lost,
    _R.STABILIZING: _constant("another number has not been recommended for all of the window"),
    _R.AT_MAXIMUM: _constant("more replicas are needed than maxReplicas allows"),
    _R.AT_MINIMUM: _constant("fewer replicas would do, and minReplicas keeps them"),
    _R.SLO_INFEASIBLE: _infeasible,
    _R.CAPACITY_UNAVAILABLE: _constant("the nodes can hold no further replica"),
    _R.TTFT_ABOVE_TARGET: _ratio("ttft_ratio", "TTFT"),
    _R.TPOT_ABOVE_TARGET: _ratio("tpot_ratio", "TPOT"),
    _R.QUEUE_AGE_ABOVE_TARGET: _ratio(
        "queue_age_ratio", "the wait of the oldest request in line, over the TTFT target,"
    ),
    _R.PREDICTED_OVERLOAD: _overload,
    _R.UNDERUSED: _underused,
    _R.BOUNDS_CHANGED: _constant("the number is outside minReplicas and maxReplicas"),
}
