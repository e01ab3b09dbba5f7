"""Expressions that several dashboards share. Windows are Grafana's own variables."""

from typing import Final

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"
SERVICE: Final = 'namespace="$namespace", inference_service="$service"'
PODS: Final = f'{SERVICE}, pod=~"$pod"'
OPERATOR: Final = 'namespace="$namespace", name="$service"'


def per_second(series: str, labels: str, by: str = "") -> str:
    """Return the rate of a counter, summed, by the labels `by`."""
    return f"sum {_by(by)}(rate({series}{{{labels}}}[{RATE}]))"


def quotient(above: str, below: str) -> str:
    """Return a quotient that has no value where `below` is 0."""
    return f"{above} / ({below} > 0)"


def mean(histogram: str, labels: str, by: str = "") -> str:
    """Return the mean of a histogram's values."""
    total, number = (per_second(f"{histogram}_{part}", labels, by) for part in ("sum", "count"))
    return quotient(total, number)


def percentile(share: float, histogram: str, labels: str, by: str = "") -> str:
    """Return a percentile of a histogram's values; none without values."""
    buckets = per_second(f"{histogram}_bucket", labels, f"{by}, le" if by else "le")
    return f"histogram_quantile({share:g}, {buckets}) >= 0"


def budget_left(target: str) -> str:
    """Return the share of the error budget of a target that is left of the time shown."""
    requests = f"increase(tandem_slo_requests_total{{{SERVICE}"
    missed = f'sum({requests}, result=~"{target}|both|failed"}}[{RANGE}]))'
    share = quotient(missed, f"sum({requests}}}[{RANGE}]))")
    percent = f'max(tandem_slo_percentile{{{SERVICE}, target="{target}"}})'
    return f"1 - ({share}) / (1 - {percent} / 100)"


def _by(labels: str) -> str:
    return f"by ({labels}) " if labels else ""
