"""What a fault costs: attainment, replica-hours and the highest number, beside those without it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from benchmarks.autoscaling.faults import FAULTS, NONE
from benchmarks.autoscaling.runs import FleetRun
from tandem_operator.scaling_law.decision import DecisionReason

_UNTOLD = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """One fault on one load, over the seeds."""

    load: str
    size: int
    fault: str
    attainment: float
    attainment_lost: float
    """That of the same load without the fault, less this one's."""
    replica_hours: float
    most: float
    """The highest number of replicas."""
    more: float
    """That number less the highest without the fault."""
    reason: str
    """The sentence that was told most often about it."""

    def document(self) -> dict[str, Any]:
        """Return it as it stands in result.json."""
        return asdict(self)


def fault_rows(runs: Sequence[FleetRun]) -> list[FaultRow]:
    """Return a row for each load, size and fault, in the order of the runs."""
    groups: dict[tuple[str, int, str], list[FleetRun]] = {}
    for run in runs:
        task = run.task
        groups.setdefault((task.load, task.size, task.fault or NONE), []).append(run)
    return [
        _row(group, groups.get((load, size, NONE), group), fault)
        for (load, size, fault), group in groups.items()
    ]


def fault_table(rows: Sequence[FaultRow]) -> Table:
    """One row for each fault on each load."""
    table = Table(box=None, pad_edge=False)
    table.add_column("load")
    table.add_column("replicas", justify="right")
    table.add_column("fault")
    for name in ("attained, %", "lost, points", "replica-h", "most", "more"):
        table.add_column(name, justify="right")
    table.add_column("told")
    for row in rows:
        table.add_row(
            row.load,
            str(row.size),
            f"{row.fault}: {escape(FAULTS[row.fault].meaning)}",
            f"{100 * row.attainment:.2f}",
            f"{100 * row.attainment_lost:+.2f}",
            f"{row.replica_hours:,.2f}",
            f"{row.most:.1f}",
            f"{row.more:+.1f}",
            escape(row.reason),
        )
    return table


def _row(runs: Sequence[FleetRun], usual: Sequence[FleetRun], fault: str) -> FaultRow:
    task, attainment, most = runs[0].task, _attainment(runs), _most(runs)
    return FaultRow(
        load=task.load,
        size=task.size,
        fault=fault,
        attainment=attainment,
        attainment_lost=_attainment(usual) - attainment,
        replica_hours=fmean(run.result.replica_hours for run in runs),
        most=most,
        more=most - _most(usual),
        reason=_reason(runs),
    )


def _attainment(runs: Sequence[FleetRun]) -> float:
    return fmean(run.result.attainment for run in runs)


def _most(runs: Sequence[FleetRun]) -> float:
    return fmean(max(moment.desired for moment in run.result.moments) for run in runs)


def _reason(runs: Sequence[FleetRun]) -> str:
    """Return what was told most often: of single replicas, else of what is not to be trusted."""
    decisions = [explained for run in runs for explained in run.explained]
    remarks = Counter(each.remarks.text for each in decisions if each.remarks.text)
    doubts = Counter(each.message for each in decisions if each.is_metrics_problem)
    refusals = Counter(
        each.message
        for each in decisions
        if each.decision.reason is DecisionReason.REQUESTS_REFUSED
    )
    most = (remarks or doubts or refusals).most_common(1)
    return most[0][0] if most else _UNTOLD
