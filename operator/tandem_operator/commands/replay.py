"""`tandem replay`: the autoscaler's decisions over the past of a service, by any policy."""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
from pydantic import ValidationError

from tandem_operator.autoscaler.current_policy import (
    max_age_s,
    max_gap_s,
    scaling_policy,
    unknown_time_zones,
)
from tandem_operator.autoscaler.measure import Targets
from tandem_operator.autoscaler.past import moments, numbers_query, read_numbers
from tandem_operator.autoscaler.prometheus import PrometheusClient, PrometheusError
from tandem_operator.autoscaler.signals import Scope, signals_query
from tandem_operator.commands.cluster import Cluster
from tandem_operator.commands.errors import ClusterError, exit_on_error
from tandem_operator.commands.replay_report import document, draw, table_lines
from tandem_operator.crd.parse import parse_object
from tandem_operator.k8s.objects import Object
from tandem_operator.render.settings import AutoscalingSettings, PrometheusSettings
from tandem_operator.scaling_law.policy import ScalingPolicy
from tandem_operator.scaling_law.replay import Recorded, Replayed, replay
from tandem_serve.api.manifest import ManifestError, load_manifest
from tandem_serve.api.spec import InferenceService

_SPAN: Final = re.compile(r"([1-9][0-9]{0,4})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_STEPS_A_QUERY: Final = 1000
"""Prometheus refuses a query with more than 11,000 points a series; fewer keep answers small."""

_LONGEST_STEPS: Final = 200_000
_TIMEOUT_S: Final = 120.0
_MAX_BYTES: Final = 256 * 2**20
_DEFAULT_COLD_START_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What to replay."""

    prometheus: str
    since: str
    manifest: Path | None
    """Manifest whose scaling and percentiles count, in place of the service's own."""

    step_s: int
    window_s: int
    as_json: bool
    plot: Path | None


def run_replay(
    name: str, namespace: str | None, *, context: str | None, options: ReplayOptions
) -> None:
    """Print what the autoscaler would have decided, each time that it differs from before."""
    with exit_on_error():
        span_s = _seconds(options.since)
        if span_s / options.step_s > _LONGEST_STEPS:
            raise ClusterError(
                f"--since {options.since} has more than {_LONGEST_STEPS} steps of "
                f"{options.step_s} s; give a larger --step"
            )
        cluster = Cluster.connect(context)
        namespace = namespace or cluster.namespace
        isvc = cluster.service(name, namespace)
        service = _service(isvc, options.manifest)
        _check(service)
        past = asyncio.run(_read_past(service, namespace, name, options, span_s))
        if not past:
            raise ClusterError(
                f"{options.prometheus} has no figures of service '{name}' in namespace "
                f"{namespace} for the last {options.since}; check that it scrapes the replicas"
            )
        replayed = _replay(past, service, _cold_start_s(isvc), options)
        if options.plot is not None:
            draw(replayed, options.plot, title=f"Replay of {name}")
            typer.echo(f"wrote {options.plot}", err=True)
    if options.as_json:
        typer.echo(json.dumps(document(replayed, options.step_s), indent=1))
    else:
        for line in table_lines(replayed, options.step_s):
            typer.echo(line)


def _seconds(text: str) -> int:
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ClusterError(
            f"--since '{text}' is not a span of time; write a number and s, m, h or d, such as 6h"
        )
    return int(match[1]) * _UNITS[match[2]]


def _service(isvc: Object, manifest: Path | None) -> InferenceService:
    """Return the service, with `scaling` and `slo` of a manifest where one is given."""
    try:
        service = parse_object(isvc)
        if manifest is None:
            return service
        other = load_manifest(manifest).spec
    except ManifestError as error:
        raise ClusterError("; ".join(error.problems)) from error
    spec = service.spec.model_copy(update={"scaling": other.scaling, "slo": other.slo})
    return service.model_copy(update={"spec": spec})


def _check(service: InferenceService) -> None:
    spec = service.spec
    if not spec.slo.is_given:
        raise ClusterError(
            f"service '{service.name}' has no target to hold; add spec.slo to it, or give a "
            "manifest that has one with -f"
        )
    if spec.scaling.max_replicas is None:
        raise ClusterError(
            f"service '{service.name}' has no spec.scaling.maxReplicas; add it, or give a "
            "manifest that has it with -f"
        )
    if unknown := unknown_time_zones(spec.scaling):
        raise ClusterError(f"spec.scaling.schedule of service '{service.name}': {unknown[0]}")


def _cold_start_s(isvc: Object) -> float:
    scaling = (isvc.get("status") or {}).get("scaling") or {}
    return float(scaling.get("coldStartSeconds") or _DEFAULT_COLD_START_S)


async def _read_past(
    service: InferenceService, namespace: str, name: str, options: ReplayOptions, span_s: int
) -> list[Recorded]:
    slo = service.spec.slo
    scope = Scope.of(namespace, name, slo, window_s=options.window_s)
    client = _client(options.prometheus)
    targets = Targets(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s)
    age_s = max_age_s(_settings(options))
    past: list[Recorded] = []
    try:
        for start_s, end_s in _spans(time.time(), span_s, options.step_s):
            samples, numbers = [
                await client.span(query, start_s, end_s, options.step_s)
                for query in (signals_query(scope), numbers_query(scope))
            ]
            past += moments(samples, read_numbers(numbers), targets, max_age_s=age_s)
    except PrometheusError as error:
        raise ClusterError(
            f"{options.prometheus} cannot be asked: {error}; give its address with --prometheus, "
            "such as that of kubectl port-forward"
        ) from error
    finally:
        await client.close()
    return past


def _client(url: str) -> PrometheusClient:
    try:
        settings = PrometheusSettings(url=url)
    except ValidationError:
        raise ClusterError(
            f"--prometheus '{url}' is not the address of a Prometheus; write one such as "
            "http://localhost:9090"
        ) from None
    return PrometheusClient(settings, lambda _: None, timeout_s=_TIMEOUT_S, max_bytes=_MAX_BYTES)


def _spans(now: float, span_s: int, step_s: int) -> Iterator[tuple[float, float]]:
    """Yield begin and end of each query; steps lie on multiples of themselves."""
    end_s = now // step_s * step_s
    start_s = end_s - span_s
    while start_s <= end_s:
        last_s = min(start_s + (_STEPS_A_QUERY - 1) * step_s, end_s)
        yield start_s, last_s
        start_s = last_s + step_s


def _settings(options: ReplayOptions) -> AutoscalingSettings:
    return AutoscalingSettings(period_seconds=options.step_s, window_seconds=options.window_s)


def _replay(
    past: Sequence[Recorded], service: InferenceService, cold_start_s: float, options: ReplayOptions
) -> list[Replayed]:
    settings, spec = _settings(options), service.spec

    def policy_at(now: float) -> ScalingPolicy:
        return scaling_policy(spec.scaling, settings, spec.slo, cold_start_s=cold_start_s, now=now)

    return list(replay(past, policy_at, cold_start_s=cold_start_s, max_gap_s=max_gap_s(settings)))
