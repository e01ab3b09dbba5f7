"""Shows the figures: tables for a terminal, a document for the file."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.scheduling.comparison import PolicyComparison, PolicyResult
from benchmarks.scheduling.cost import GOAL_BYTES, MemoryCost, StepCost
from benchmarks.scheduling.trial import Trial
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.statistics import Spread

_NONE = "–"


def comparison_table(comparison: PolicyComparison) -> Table:
    """One row for each policy."""
    table = _table(comparison.name, "policy")
    for name in (
        "req/s", "goodput", "ratio", "TTFT P50", "P90", "P99", "TPOT P50", "P90", "P99", "tok/s",
        "preempted",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for entry in comparison.entries:
        table.add_row(escape(entry.policy), *_comparison_row(comparison, entry))
    return table


def cost_table(costs: Sequence[StepCost]) -> Table:
    """One row for each setting and size."""
    table = _table("CPU time of schedule() + complete() a step, in ms", "setting")
    for name in (
        "running", "waiting", "rows", "mean", "P50", "P99", "schedule", "complete", "goal",
        "loop",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for cost in costs:
        table.add_row(
            cost.setting,
            f"{cost.num_running:,}",
            f"{cost.num_waiting:,}",
            f"{cost.mean_rows:.0f}",
            f"{cost.mean_ms:.3f}",
            f"{cost.p50_ms:.3f}",
            f"{cost.p99_ms:.3f}",
            f"{cost.schedule_ms:.3f}",
            f"{cost.complete_ms:.3f}",
            _NONE if cost.goal_ms is None else f"{cost.goal_ms:g}",
            f"{cost.reference_ms:.1f}",
        )
    return table


def memory_table(costs: Sequence[MemoryCost]) -> Table:
    """One row for each setting."""
    table = _table(f"Memory of a request in bytes, goal {GOAL_BYTES:,}", "setting")
    table.add_column("waiting", justify="right")
    table.add_column("running", justify="right")
    for cost in costs:
        table.add_row(cost.setting, f"{cost.waiting_bytes:,.0f}", f"{cost.running_bytes:,.0f}")
    return table


def trial_table(trials: Sequence[Trial], targets: LatencyTargets) -> Table:
    """One row for each policy, load and repeat on the real engine."""
    title = f"TTFT {targets.ttft_ms:g} ms, TPOT {targets.tpot_ms:g} ms"
    table = _table(title, "policy")
    for name in (
        "load", "repeat", "req/s", "goodput", "sustained", "TTFT P50", "P90", "P99", "TPOT P50",
        "P90", "P99",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for trial in trials:
        run = trial.run
        table.add_row(
            escape(trial.policy),
            f"{trial.load_share:g}",
            str(trial.repeat + 1),
            f"{run.rate:.2f}",
            f"{run.goodput:.2f}",
            "yes" if run.sustained else "no",
            *_cells(run.ttft_ms, digits=0),
            *_cells(run.tpot_ms, digits=1),
        )
    return table


def comparison_document(comparison: PolicyComparison) -> dict[str, Any]:
    """A comparison as it stands in result.json."""
    return {
        "name": comparison.name,
        "entries": [
            {**asdict(entry), "goodput": entry.goodput, "ratio": comparison.ratio(entry)}
            for entry in comparison.entries
        ],
    }


def _comparison_row(comparison: PolicyComparison, entry: PolicyResult) -> list[str]:
    run, ratio = entry.run, comparison.ratio(entry)
    if run is None:
        return [_NONE] * 11
    return [
        f"{run.rate:.2f}",
        f"{run.goodput:.2f}",
        _NONE if ratio is None else f"{ratio:.2f}",
        *_cells(run.ttft_ms, digits=0),
        *_cells(run.tpot_ms, digits=1),
        f"{run.total_tokens_per_s:.0f}",
        str(run.num_preemptions),
    ]


def _cells(spread: Spread | None, *, digits: int) -> list[str]:
    if spread is None:
        return [_NONE] * 3
    return [f"{value:.{digits}f}" for value in (spread.p50, spread.p90, spread.p99)]


def _table(title: str, first: str) -> Table:
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    table.add_column(first)
    return table
