"""The page on metrics names every series that the code has, and no other."""

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.api.micro_batch_stats import MicroBatchStats
from tandem_engine.api.output import DraftCounts, EngineStats
from tandem_engine.api.rank_bytes import RankBytes
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.async_engine.metric_aliases import (
    MINDIE,
    MINDIE_GAUGES,
    MINDIE_RATIOS,
    VLLM,
)
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.async_engine.recent_requests import FEWEST
from tandem_engine.async_engine.timeline import Timeline
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_operator.metrics import Metrics
from tandem_serve.http.metrics import ResponseCounts, exposition
from tests.unit.docs.pages import ROOT, code_blocks, prose, rows

PAGE = ROOT / "docs" / "reference" / "metrics.md"
SERIES = re.compile(r"`((?:tandem|process)_[a-z0-9_]+)(?:\{[^}]*\})?`")
MICRO_BATCHES = MicroBatchStats(
    num_splits=1,
    refusals={"no_gain": 1},
    hidden_s=1.0,
    exposed_s=1.0,
    overlap=0.5,
    gates={},
    num_kv_blocks=1,
)
TYPES = {"counter", "gauge", "histogram"}


def series(families: Iterable[Metric]) -> dict[str, str]:
    """Name, as it is queried → type."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in families
    }


def engine_series() -> dict[str, str]:
    slo = Slo(ttft=LatencyTarget(target="1s"), tpot=LatencyTarget(target="50ms"))
    ranks = [RankBytes(rank=0, process=1, weights=1, kv_cache=1)]
    facts = DeviceFacts(device="cpu", name="a CPU", software="kernels", memory_bytes=1)
    metrics = EngineMetrics("tiny", slo=slo, ranks=ranks, device=facts)
    drafts = {"ngram": DraftCounts(num_drafted=4, accepted=(2, 1))}
    counts: dict[str, Any] = {field.name: 1 for field in fields(EngineStats)}
    stats = EngineStats(**{**counts, "drafts": drafts})
    metrics.watch_micro_batches(lambda: MICRO_BATCHES)
    metrics.state(stats, prices=StepTimeModel().prices)
    for _ in range(FEWEST):
        metrics.received(num_prompt=1, num_choices=1)
        metrics.admitted(num_prompt=1, num_cached=0, num_choices=1)
        metrics.finished(Timeline(0.0, num_tokens=1), 1.0, num_prompt=1)
    return series(text_string_to_metric_families(metrics.text().decode()))


def http_series() -> dict[str, str]:
    counts = ResponseCounts()
    counts.record("/health", "GET", 200)
    text = exposition(counts, num_refused=0, num_in_flight=0).decode()
    return series(text_string_to_metric_families(text))


def documented() -> dict[str, str]:
    """Name → type, of the tables; their columns stand in either order."""
    found = {}
    for _, cells in rows(PAGE):
        text = " | ".join(cells[:2])
        kind = TYPES.intersection(cells[:2])
        if kind and (match := SERIES.search(text)):
            found[match[1]] = kind.pop()
    return found


def test_every_series_is_documented_with_its_type_and_no_other() -> None:
    operator = series(Metrics().registry.collect())

    assert documented() == engine_series() | http_series() | operator


def test_queries_and_alerts_name_series_that_there_are() -> None:
    known = documented()
    suffixes = re.compile(r"_(bucket|sum|count)$")
    text = "\n".join(line for block in code_blocks(PAGE) for line in block.lines)
    named = set(re.findall(r"\btandem_[a-z0-9_]+", text + "\n".join(prose(PAGE))))
    unknown = {name for name in named if name not in known and suffixes.sub("", name) not in known}

    assert unknown <= {"tandem_"}, "the prefix alone stands in the text"


def test_every_alias_stands_beside_its_series() -> None:
    engine = engine_series()
    table = {
        cells[0].strip("`"): {cell.strip("`").split("`")[0] for cell in cells[1:] if cell}
        for _, cells in rows(PAGE)
        if len(cells) == 3
    }
    for source, name in [*VLLM.items(), *MINDIE.items()]:
        suffix = "" if source in engine else "_total"
        assert f"{name}{suffix}" in table[f"{source}{suffix}"]
    for source, name in MINDIE_GAUGES.items():
        assert name in table[f"{source}_total"]
    assert set(MINDIE_RATIOS) <= set.union(*table.values())
