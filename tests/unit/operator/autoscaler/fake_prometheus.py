"""A fake Prometheus: it answers queries over HTTP with the figures that a test sets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from aiohttp import web

from tandem_operator.autoscaler.signals import PodSample

NOW_S = 1_763_733_600.0
"""2025-11-21T14:00:00Z."""

HEALTHY: dict[str, float] = {
    "ttft_s": 0.6,
    "ttft_samples": 100.0,
    "tpot_s": 0.05,
    "tpot_samples": 100.0,
    "queue_age_s": 0.0,
    "arrival_rate": 14.0,
    "capacity": 10.0,
    "concurrency": 20.0,
    "ongoing_requests": 16.0,
    "kv_usage": 0.5,
    "zero_load_ttft_s": 0.3,
    "zero_load_tpot_s": 0.04,
    "steps": 3000.0,
    "least_running": 1.0,
    "refused_rate": 0.0,
    "tpot_pace_ratio": 0.95,
    "token_budget": 512.0,
    "token_budget_used_ratio": 0.7,
}
"""Figures of a service; those of its replicas are shared out, or are the same for each."""

SUMS = ("arrival_rate", "ongoing_requests", "refused_rate")
OF_REPLICAS = frozenset(field.name for field in fields(PodSample))


def shared_out(values: Mapping[str, float], replicas: int) -> dict[str, float]:
    """Return what each of so many replicas has of a service's figures."""
    return {
        name: value / replicas if name in SUMS else value
        for name, value in values.items()
        if name in OF_REPLICAS
    }


def of_service(values: Mapping[str, float]) -> dict[str, float]:
    """Return the figures that Prometheus has of the service as a whole."""
    return {name: value for name, value in values.items() if name not in OF_REPLICAS}


def text_of(value: float) -> str:
    """Return a number as Prometheus writes it."""
    special = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
    return special.get(str(value), str(value))


def answer(
    values: Mapping[str, float],
    pods: Mapping[str, Mapping[str, float]],
    evaluated_at: float = NOW_S,
) -> dict[str, Any]:
    """Return the answer to a query for the signals of a service."""
    whole = {**of_service(values), "evaluated_at": evaluated_at}
    vector = [{"metric": {"signal": name}, "value": [evaluated_at, text_of(value)]}
              for name, value in whole.items()]  # fmt: skip
    vector += [
        {"metric": {"signal": f"pod_{name}", "pod": pod}, "value": [evaluated_at, text_of(value)]}
        for pod, parts in pods.items()
        for name, value in {**shared_out(values, len(pods)), **parts}.items()
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": vector}}


def empty_answer() -> dict[str, Any]:
    """Return the answer of a Prometheus that has no such series."""
    return {"status": "success", "data": {"resultType": "vector", "result": []}}


def scraped(
    pods: Sequence[str], at_s: float = NOW_S - 5, **parts: float
) -> dict[str, dict[str, float]]:
    """Return the counters of replicas that were scraped at a moment."""
    usual = {"received": 100.0, "scraped_at": at_s, "exposed_at": at_s, "started_at": at_s - 1000}
    return {pod: {**usual, **parts} for pod in pods}


class FakePrometheus:
    """Answers what it is told to, and counts its requests."""

    def __init__(self) -> None:
        self.body: Any = empty_answer()
        self.code = 200
        self.text: str | None = None
        self.past: dict[float, Any] = {}
        """Answers to instant queries by the seconds since they held; range queries have them."""
        self.answers_spans = True
        self.spans: list[tuple[float, float, float]] = []
        """Begin, end and step of each range query."""
        self.queries: list[str] = []
        self.tokens: list[str | None] = []

    def has(
        self, values: Mapping[str, float] | None = None, pods: Sequence[str] = ("a", "b")
    ) -> None:
        """Answer with these figures over the healthy ones."""
        self.body = answer({**HEALTHY, **(values or {})}, scraped(pods))

    def application(self) -> web.Application:
        """Return the server."""
        application = web.Application()
        application.router.add_post("/prefix/api/v1/query", self._query)
        application.router.add_post("/prefix/api/v1/query_range", self._query_range)
        return application

    async def _query_range(self, request: web.Request) -> web.Response:
        form = await request.post()
        start, end, step = (float(str(form[name])) for name in ("start", "end", "step"))
        self.spans.append((start, end, step))
        lines = [
            {"metric": line["metric"], "values": [line["value"]]}
            for ago_s, body in self.past.items()
            if start <= end - ago_s
            for line in body["data"]["result"]
        ]
        body = {"status": "success", "data": {"resultType": "matrix", "result": lines}}
        return web.json_response(body, status=self.code if self.answers_spans else 503)

    async def _query(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.queries.append(str(form["query"]))
        self.tokens.append(request.headers.get("Authorization"))
        text = json.dumps(self.body) if self.text is None else self.text
        return web.Response(text=text, status=self.code, content_type="application/json")
