"""Traces in the format of Azure's public data set, and how they are fitted to a model. Pure.

The columns are TIMESTAMP, ContextTokens and GeneratedTokens; others are ignored.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Final

from benchmarks.serving.case import Shape
from benchmarks.serving.errors import BenchmarkError

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that is to be sent at a certain time."""

    due_s: float
    """Seconds after the beginning of the load."""
    shape: Shape


def parse_trace(lines: Iterable[str], *, limit: int | None = None) -> list[Arrival]:
    """The first `limit` rows of a trace, the first at time 0.

    Raises:
        BenchmarkError: there are no rows, or they cannot be read.
    """
    reader = csv.DictReader(lines)
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise BenchmarkError(
            f"The trace has no column {missing[0]}; it needs {', '.join(COLUMNS)}."
        )
    rows = list(islice(_read_rows(reader), limit))
    if not rows:
        raise BenchmarkError("The trace has no rows.")
    first = min(at for at, _ in rows)
    timed = [Arrival((at - first).total_seconds(), shape) for at, shape in rows]
    return sorted(timed, key=lambda arrival: arrival.due_s)


def _read_rows(reader: "csv.DictReader[str]") -> Iterator[tuple[datetime, Shape]]:
    for row in reader:
        try:
            at = datetime.fromisoformat(row[COLUMNS[0]])
            shape = Shape(max(1, int(row[COLUMNS[1]])), max(1, int(row[COLUMNS[2]])))
        except (ValueError, TypeError):
            raise BenchmarkError(
                f"Line {reader.line_num} of the trace is not a time and two token counts: "
                f"{','.join(str(value) for value in row.values())}."
            ) from None
        yield at, shape


def speed_up(arrivals: Sequence[Arrival], speed: float) -> list[Arrival]:
    """The same requests, `speed` times as fast."""
    return [replace(arrival, due_s=arrival.due_s / speed) for arrival in arrivals]


def clip(arrivals: Sequence[Arrival], max_tokens: int) -> tuple[list[Arrival], int]:
    """Cut requests to `max_tokens`, prompt and answer together; also return how many were cut.

    An answer keeps at most half of it, the prompt what the answer leaves.
    """
    cut = [replace(arrival, shape=_clip(arrival.shape, max_tokens)) for arrival in arrivals]
    return cut, sum(was.shape != now.shape for was, now in zip(arrivals, cut, strict=True))


def _clip(shape: Shape, max_tokens: int) -> Shape:
    if shape.num_tokens <= max_tokens:
        return shape
    num_output = min(shape.num_output, max_tokens // 2)
    return Shape(min(shape.num_input, max_tokens - num_output), num_output)
