"""A replay of decisions as a table, as JSON and as a picture."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tandem_operator.clock import from_unix_s
from tandem_operator.commands.errors import ClusterError
from tandem_operator.commands.text import count_of
from tandem_operator.scaling_law.replay import Replayed

_HEADER: Final = ("TIME", "RAN", "REPLAY", "REQ/S", "CAPACITY", "REASON")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A replay beside what ran."""

    moments: int
    replica_hours_ran: float
    replica_hours_replayed: float
    changes_ran: int
    changes_replayed: int
    overloaded_s_ran: float
    """Seconds in which more requests arrived than the replicas that answered were predicted to
    carry."""

    overloaded_s_replayed: float


def summary_of(replayed: Sequence[Replayed], step_s: float) -> Summary:
    """Return the totals; each moment stands for the time until the next, three steps at most."""
    shares = [
        min(after.recorded.at_s - before.recorded.at_s, 3 * step_s)
        for before, after in pairwise(replayed)
    ] + [step_s] * bool(replayed)
    ran = [moment.recorded.observation.desired for moment in replayed]
    desired = [moment.decision.desired for moment in replayed]

    def overloaded_s(ready: Iterable[int]) -> float:
        return sum(
            share
            for moment, share, number in zip(replayed, shares, ready, strict=True)
            if _is_overloaded(moment, number)
        )

    return Summary(
        moments=len(replayed),
        replica_hours_ran=_hours(ran, shares),
        replica_hours_replayed=_hours(desired, shares),
        changes_ran=_changes(ran),
        changes_replayed=_changes(desired),
        overloaded_s_ran=overloaded_s(moment.recorded.observation.ready for moment in replayed),
        overloaded_s_replayed=overloaded_s(moment.ready for moment in replayed),
    )


def _is_overloaded(moment: Replayed, ready: int) -> bool:
    rate = moment.recorded.observation.arrival_rate
    capacity = moment.recorded.observation.capacity_per_replica
    return rate is not None and capacity is not None and rate > ready * capacity


def _hours(numbers: Sequence[int], shares: Sequence[float]) -> float:
    return sum(number * share for number, share in zip(numbers, shares, strict=True)) / 3600


def _changes(numbers: Sequence[int]) -> int:
    return sum(before != after for before, after in pairwise(numbers))


def table_lines(replayed: Sequence[Replayed], step_s: float) -> Iterator[str]:
    """Yield the moments at which a number or its reason changes, and the totals."""
    rows = [_HEADER, *map(_row, _turns(replayed))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (text.ljust(width + 3) for text, width in zip(row, widths, strict=True))
        yield "".join(cells).rstrip()
    yield ""
    summary = summary_of(replayed, step_s)
    yield (
        f"{count_of(summary.moments, 'moment')}. "
        f"Replica-hours: {summary.replica_hours_ran:.2f} ran, "
        f"{summary.replica_hours_replayed:.2f} in the replay. Changes: {summary.changes_ran} and "
        f"{summary.changes_replayed}. More load than was predicted to be carried: "
        f"{summary.overloaded_s_ran:.0f} s and {summary.overloaded_s_replayed:.0f} s."
    )


def _turns(replayed: Sequence[Replayed]) -> Iterator[Replayed]:
    """Yield the moments at which a number, or the reason for it, differs from the one before."""
    before: tuple[int, int, str] | None = None
    for moment in replayed:
        now = (
            moment.recorded.observation.desired,
            moment.decision.desired,
            str(moment.decision.reason),
        )
        if now != before:
            yield moment
        before = now


def _row(moment: Replayed) -> tuple[str, ...]:
    observation = moment.recorded.observation
    return (
        from_unix_s(moment.recorded.at_s),
        str(observation.desired),
        str(moment.decision.desired),
        _figure(observation.arrival_rate),
        _figure(observation.capacity_per_replica),
        str(moment.decision.reason),
    )


def _figure(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def document(replayed: Sequence[Replayed], step_s: float) -> dict[str, Any]:
    """Return the totals and every moment as JSON data."""
    return {
        "summary": asdict(summary_of(replayed, step_s)),
        "moments": [
            {
                "time": from_unix_s(moment.recorded.at_s),
                "ran": moment.recorded.observation.desired,
                "ready": moment.recorded.observation.ready,
                "replayed": moment.decision.desired,
                "replayedReady": moment.ready,
                "recommended": moment.decision.recommended,
                "reason": str(moment.decision.reason),
                "inputs": {
                    name: value
                    for name, value in moment.decision.inputs.items()
                    if value is not None
                },
            }
            for moment in replayed
        ],
    }


def draw(replayed: Sequence[Replayed], path: Path, *, title: str) -> None:
    """Draw load, and both numbers of replicas, over time.

    Raises:
        ClusterError: it cannot be drawn, or not written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # only where a picture is asked for
    except ModuleNotFoundError:
        raise ClusterError("--plot needs matplotlib: pip install matplotlib") from None
    hours = [(moment.recorded.at_s - replayed[-1].recorded.at_s) / 3600 for moment in replayed]
    figure = Figure(figsize=(9, 5), layout="constrained")
    load, replicas = figure.subplots(2, 1, sharex=True)
    rates = [moment.recorded.observation.arrival_rate or 0.0 for moment in replayed]
    carried = [
        moment.ready * (moment.recorded.observation.capacity_per_replica or float("nan"))
        for moment in replayed
    ]
    load.plot(hours, rates, label="requests/s that arrived")
    load.plot(hours, carried, "--", label="predicted capacity in the replay")
    replicas.step(hours, [moment.recorded.observation.desired for moment in replayed], label="ran")
    replicas.step(hours, [moment.decision.desired for moment in replayed], "--", label="replay")
    replicas.set_xlabel("hours before now")
    replicas.set_ylabel("replicas")
    load.set_title(title)
    for axes in (load, replicas):
        axes.set_ylim(bottom=0)
        axes.legend(loc="upper left")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ClusterError(f"--plot {path} cannot be written: {error}") from error
