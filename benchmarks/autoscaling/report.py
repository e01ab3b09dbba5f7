"""Shows the runs: tables for a terminal, a document for the file."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.autoscaling.accuracy import Comparison
from benchmarks.autoscaling.runs import FleetRun
from benchmarks.autoscaling.summary import (
    OWN,
    Spread,
    Summary,
    best_tuned,
    hours_at,
)

_NONE = "–"


def run_table(rows: Sequence[Summary]) -> Table:
    """One row for each controller on each load."""
    table = Table(box=None, pad_edge=False)
    for name in ("load", "controller", "model"):
        table.add_column(name)
    for name in (
        "replicas", "attained, %", "replica-h", "settles", "flaps", "most", "took, s",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.load,
            escape(row.controller),
            row.model,
            str(row.size),
            _percent(row.attainment),
            _plus_minus(row.replica_hours, 2),
            _settling(row),
            f"{row.num_flaps.mean:.1f}",
            f"{row.most.mean:.0f}",
            f"{row.wall_s.mean:.1f}",
        )
    return table


def comparison_table(rows: Sequence[Summary]) -> Table:
    """One row for each rival on each load: its replica-hours at the attainment of Tandem.

    The parameter is the best of the grid for this very load, which is not known before. The last
    column lies between two parameters, at Tandem's own attainment.
    """
    table = Table(title="Rivals with the parameter that is best for each load", box=None)
    table.add_column("load")
    table.add_column("replicas", justify="right")
    table.add_column("tandem, % and replica-h", justify="right")
    table.add_column("rival")
    for name in ("attained, %", "replica-h", "replica-h over tandem's", "at equal attainment"):
        table.add_column(name, justify="right")
    for _, each in groupby(rows, key=lambda row: (row.load, row.size)):
        group = list(each)
        own = next((row for row in group if row.controller == OWN), None)
        if own is None:
            continue
        for family in dict.fromkeys(row.family for row in group):
            best = best_tuned(group, family, own.attainment.mean)
            if family == OWN or best is None:
                continue
            equal = hours_at(group, family, own.attainment.mean)
            table.add_row(
                own.load,
                str(own.size),
                f"{own.attainment.mean:.2%}, {own.replica_hours.mean:,.2f}",
                escape(best.controller),
                _percent(best.attainment),
                _plus_minus(best.replica_hours, 2),
                _against(best, own),
                _NONE if equal is None else f"{equal / own.replica_hours.mean - 1.0:+.1%}",
            )
    return table


def _against(best: Summary, own: Summary) -> str:
    """Return a rival's replica-hours over Tandem's, with a mark where it attains less."""
    more = best.replica_hours.mean / own.replica_hours.mean - 1.0
    is_enough = best.attainment.mean >= own.attainment.mean
    return f"{more:+.0%}" if is_enough else f"{more:+.0%}, attains less"


def accuracy_table(comparisons: Sequence[Comparison]) -> Table:
    """One row for each load: figures of the real scheduler, then of flows."""
    table = Table(box=None, pad_edge=False)
    table.add_column("load")
    for name in ("attained", "TTFT P90", "TPOT P90", "ongoing", "replica-h"):
        table.add_column(name, justify="right")
    for each in comparisons:
        real, flow = each.scheduler, each.flow
        table.add_row(
            escape(each.name),
            f"{real.attainment:.1%} / {flow.attainment:.1%}",
            f"{_milliseconds(real.ttft_s)} / {_milliseconds(flow.ttft_s)}",
            f"{_milliseconds(real.tpot_s)} / {_milliseconds(flow.tpot_s)}",
            f"{each.ongoing(real):.1f} / {each.ongoing(flow):.1f}",
            f"{real.replica_hours:.2f} / {flow.replica_hours:.2f}",
        )
    return table


def run_document(run: FleetRun, *, first_seed: int) -> dict[str, Any]:
    """Return a run as it stands in result.json: moments of the first seed, without a parameter."""
    result, task = run.result, run.task
    document = asdict(task) | {
        name: value for name, value in _fields(run).items() if name != "task"
    }
    del document["result"]
    figures = _fields(result)
    periods, moments = figures.pop("periods"), figures.pop("moments")
    figures["attainment"] = result.attainment
    if task.seed == first_seed and "=" not in task.controller:
        figures["periods"] = [asdict(each) for each in periods]
        figures["moments"] = [_without_replicas(asdict(each)) for each in moments]
    return {**document, **figures}


def _without_replicas(moment: dict[str, Any]) -> dict[str, Any]:
    """Return a moment without each single replica: a day of a thousand would be too much."""
    moment["observation"] = {
        name: value
        for name, value in moment["observation"].items()
        if name not in {"replicas", "starts"}
    }
    return moment


def _fields(each: Any) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__dataclass_fields__}


def _percent(spread: Spread) -> str:
    return f"{100 * spread.mean:.2f} ± {100 * spread.deviation:.2f}"


def _plus_minus(spread: Spread, digits: int) -> str:
    return f"{spread.mean:,.{digits}f} ± {spread.deviation:.{digits}f}"


def _settling(row: Summary) -> str:
    if row.num_unsettled:
        return f"never ({row.num_unsettled} of {row.num_seeds})"
    return _NONE if row.settling_periods is None else _plus_minus(row.settling_periods, 1)


def _milliseconds(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds * 1e3:,.0f}"
