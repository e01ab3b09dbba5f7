"""The signals of one service: the one query that asks for them all, and its answer; pure.

The query joins its expressions by `or`; the label `signal` tells them apart. Every selector names
namespace and service, so a Prometheus that renames these labels (honorLabels) or has no such
series gives an empty answer, never another service's figures.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, Self

import msgspec

from tandem_engine.api.slo import Slo

_POD: Final = "pod"
_SIGNAL: Final = "signal"
_MAX_TEXT: Final = 120

# Counters and gauges that are read for each replica.
RECEIVED: Final = "tandem_request_received_total"
EXPOSED_AT: Final = "tandem_exposition_timestamp_seconds"
STARTED_AT: Final = "process_start_time_seconds"

_REFUSED: Final = "tandem_http_requests_refused_total"
_GAUGES: Final = {
    "queue_age_s": "tandem_queue_age_seconds",
    "kv_usage": "tandem_kv_cache_usage_ratio",
    "capacity": "tandem_predicted_capacity_requests_per_second",
    "concurrency": "tandem_predicted_capacity_concurrency",
    "zero_load_ttft_s": "tandem_predicted_zero_load_ttft_seconds",
    "zero_load_tpot_s": "tandem_predicted_zero_load_tpot_seconds",
}


class InvalidAnswer(Exception):
    """The answer is none of Prometheus' to an instant query; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The service that a query is about, and its targets' percentiles."""

    namespace: str
    service: str
    window_s: int
    """Window of rates and quantiles."""

    ttft_percentile: float | None = None
    """None: the SLO has no such target."""

    tpot_percentile: float | None = None
    matchers: tuple[tuple[str, str], ...] = ()
    """Further labels of its series, such as that of the cluster, and their values."""

    @classmethod
    def of(
        cls,
        namespace: str,
        service: str,
        slo: Slo,
        *,
        window_s: int,
        matchers: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the scope of a service with this SLO."""
        return cls(
            namespace=namespace,
            service=service,
            window_s=window_s,
            ttft_percentile=slo.ttft.percentile if slo.ttft else None,
            tpot_percentile=slo.tpot.percentile if slo.tpot else None,
            matchers=tuple((matchers or {}).items()),
        )

    def series(self, name: str) -> str:
        """Return the selector of a series of this service."""
        of_service = ("namespace", self.namespace), ("inference_service", self.service)
        labels = (*of_service, *self.matchers)
        matchers = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        return f"{name}{{{matchers}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSample:
    """One replica as Prometheus has it; None: it has no such figure. Moments are Unix time."""

    received: float
    """Requests that it has taken."""

    scraped_at: float
    exposed_at: float | None = None
    """The moment at which the replica made what was scraped."""

    exposures: float | None = None
    """Changes of `exposed_at` within the window: 0 of a replica that shows an old text."""

    started_at: float | None = None
    """The start of its process."""

    arrival_rate: float | None = None
    """Requests a second that it has taken, over the window."""

    refused_rate: float | None = None
    """Slots a second that were asked for and not given, over the window."""

    queue_age_s: float | None = None
    ongoing_requests: float | None = None
    """Sequences in process, waiting or swapped."""

    least_running: float | None = None
    """Fewest sequences in process at any scrape of the window."""

    steps: float | None = None
    """Steps that it has computed within the window."""

    kv_usage: float | None = None
    capacity: float | None = None
    concurrency: float | None = None
    zero_load_ttft_s: float | None = None
    zero_load_tpot_s: float | None = None

    def figures(self) -> Iterator[float | None]:
        """Yield what a decision is made from: amounts, all of them."""
        yield from (self.received, self.arrival_rate, self.refused_rate, self.queue_age_s)
        yield from (self.ongoing_requests, self.least_running, self.steps, self.kv_usage)
        yield from (self.capacity, self.concurrency)
        yield from (self.zero_load_ttft_s, self.zero_load_tpot_s)


_FIELDS: Final = frozenset(field.name for field in fields(PodSample))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Figures of one service; those that are missing are None, others may be NaN or infinite."""

    values: Mapping[str, float] = field(default_factory=dict)
    pods: Mapping[str, PodSample] = field(default_factory=dict)
    """The replicas that were scraped, by pod."""

    ended: Mapping[str, float] = field(default_factory=dict)
    """Requests a second, over the window, of replicas that are not scraped any more, by pod."""

    evaluated_at: float = math.nan
    """The moment of the query by Prometheus' clock."""

    warnings: tuple[str, ...] = ()
    """Warnings of Prometheus: a part of the answer may be missing."""

    def get(self, name: str) -> float | None:
        """Return a figure of the service; None: there is none."""
        return self.values.get(name)


def signals_query(scope: Scope) -> str:
    """Return the query for all signals of a service."""
    return " or ".join(
        f'label_replace({expression}, "{_SIGNAL}", "{name}", "", "")'
        for name, expression in (*_of_service(scope), *_of_pods(scope))
    )


def service_expressions(scope: Scope) -> dict[str, str]:
    """Return the expression of each figure of a service by the figure's name, for other readers."""
    age = f"max by ({_POD}) ({scope.series('tandem_queue_age_seconds')})"
    return {
        **dict(_of_service(scope)),
        # The median: one replica that hangs has a queue whose age grows for ever.
        "queue_age_s": f"quantile(0.5, {age})",
        "arrival_rate": _summed("rate", RECEIVED, scope),
    }


def _of_service(scope: Scope) -> Iterator[tuple[str, str]]:
    yield from _latency("ttft", "tandem_time_to_first_token_seconds", scope, scope.ttft_percentile)
    yield from _latency(
        "tpot", "tandem_time_per_output_token_seconds", scope, scope.tpot_percentile
    )
    yield "tpot_pace_ratio", f"min({scope.series('tandem_tpot_pace_ratio')})"
    yield "token_budget", _mean("tandem_step_token_budget", scope)
    yield "token_budget_used_ratio", _mean("tandem_step_token_budget_used_ratio", scope)
    yield "evaluated_at", f"0 * max(timestamp({scope.series(RECEIVED)})) + time()"


def _of_pods(scope: Scope) -> Iterator[tuple[str, str]]:
    """Yield the figures of each replica, by the fields of PodSample."""
    received, running = scope.series(RECEIVED), scope.series("tandem_num_requests_running")
    window, exposed_at = f"[{scope.window_s}s]", scope.series(EXPOSED_AT)
    refused, steps = scope.series(_REFUSED), scope.series("tandem_step_duration_seconds_count")
    for name, expression in (
        ("received", received),
        ("scraped_at", f"timestamp({received})"),
        ("exposed_at", exposed_at),
        ("exposures", f"changes({exposed_at}{window})"),
        ("started_at", scope.series(STARTED_AT)),
        ("arrival_rate", f"rate({received}{window})"),
        ("refused_rate", f"rate({refused}{window})"),
        ("least_running", f"min_over_time({running}{window})"),
        ("steps", f"increase({steps}{window})"),
        *((name, scope.series(series)) for name, series in _GAUGES.items()),
    ):
        yield f"pod_{name}", _by_pod(expression)
    yield (
        "pod_ongoing_requests",
        " + ".join(
            _by_pod(scope.series(f"tandem_num_requests_{state}"))
            for state in ("running", "waiting", "swapped")
        ),
    )


def _by_pod(expression: str) -> str:
    # One replica may be scraped by two jobs.
    return f"max by ({_POD}) ({expression})"


def _latency(
    name: str, series: str, scope: Scope, percentile: float | None
) -> Iterator[tuple[str, str]]:
    if percentile is None:
        return
    buckets = f"rate({scope.series(f'{series}_bucket')}[{scope.window_s}s])"
    # One replica may be scraped by two jobs.
    merged = f"sum by (le) (max by ({_POD}, le) ({buckets}))"
    yield f"{name}_s", f"histogram_quantile({percentile / 100:g}, {merged})"
    yield f"{name}_samples", _summed("increase", f"{series}_count", scope)


def _summed(function: str, series: str, scope: Scope) -> str:
    inner = f"{function}({scope.series(series)}[{scope.window_s}s])"
    return f"sum(max by ({_POD}) ({inner}))"


def _mean(histogram: str, scope: Scope) -> str:
    sums, counts = (_summed("rate", f"{histogram}_{part}", scope) for part in ("sum", "count"))
    return f"{sums} / {counts}"


def _escaped(text: str) -> str:
    """Return `text` for a label's value in PromQL."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Sample(msgspec.Struct):
    """One series at one moment."""

    value: tuple[float, str]
    """Unix time, and the number as Prometheus writes it."""

    metric: dict[str, str] = {}
    """Its labels."""


class _Data(msgspec.Struct):
    result_type: str = msgspec.field(name="resultType", default="")
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""
    warnings: list[str] = []
    is_partial: bool = msgspec.field(name="isPartial", default=False)
    """As Thanos and VictoriaMetrics have it, of which a store may be away."""


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_VECTOR: Final = msgspec.json.Decoder(list[Sample])


def read_answer(body: bytes) -> Signals:
    """Return the signals in the answer to `signals_query`.

    Raises:
        InvalidAnswer: it is no such answer.
    """
    answer = _answer(body)
    try:
        vector = _VECTOR.decode(_result(answer, "vector"))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise not_an_answer(error) from error
    warnings = [warning[:_MAX_TEXT] for warning in answer.warnings]
    if answer.is_partial and not warnings:
        warnings = ["the answer is partial"]
    return replace(signals_of(vector), warnings=tuple(warnings))


def result_of(body: bytes, result_type: str) -> msgspec.Raw:
    """Return the result in an answer of Prometheus, not decoded yet.

    Raises:
        InvalidAnswer: it is no answer with a result of this type.
    """
    return _result(_answer(body), result_type)


def _answer(body: bytes) -> _Answer:
    try:
        return _ANSWER.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise not_an_answer(error) from error


def _result(answer: _Answer, result_type: str) -> msgspec.Raw:
    if answer.status != "success":
        raise InvalidAnswer(f"Prometheus refuses the query: {answer.error[:_MAX_TEXT]}")
    if answer.data.result_type != result_type:
        actual = answer.data.result_type[:_MAX_TEXT]
        raise InvalidAnswer(f"it has a {actual!r}, no {result_type}")
    return answer.data.result


def not_an_answer(error: Exception) -> InvalidAnswer:
    """Return the error about something that cannot be decoded."""
    return InvalidAnswer(f"it is no answer to a query ({str(error)[:_MAX_TEXT]})")


def signals_of(samples: Sequence[Sample]) -> Signals:
    """Return the signals in the samples of one moment."""
    values: dict[str, float] = {}
    by_pod: dict[str, dict[str, float]] = {}
    for series in samples:
        name, pod = series.metric.get(_SIGNAL, ""), series.metric.get(_POD)
        value = _number(series.value[1])
        if name.startswith("pod_"):
            if pod:
                by_pod.setdefault(pod, {})[name.removeprefix("pod_")] = value
        else:
            # Prometheus answers a name once; of more than one, none can be trusted.
            values[name] = math.nan if name in values else value
    pods = {pod: sample for pod, parts in by_pod.items() if (sample := _pod_sample(parts))}
    ended = {
        pod: parts.get("arrival_rate", 0.0) for pod, parts in by_pod.items() if pod not in pods
    }
    return Signals(
        values=values,
        pods=pods,
        ended={pod: rate for pod, rate in ended.items() if math.isfinite(rate) and rate > 0},
        evaluated_at=values.pop("evaluated_at", math.nan),
    )


def _pod_sample(parts: Mapping[str, float]) -> PodSample | None:
    if "received" not in parts or "scraped_at" not in parts:
        return None
    return PodSample(**{name: value for name, value in parts.items() if name in _FIELDS})


def _number(text: str) -> float:
    """Return a number as Prometheus writes it: also NaN, +Inf and -Inf; another text is NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan
