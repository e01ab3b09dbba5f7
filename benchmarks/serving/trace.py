"""Traces in the format of Azure's public data set. Pure.

The columns are TIMESTAMP, ContextTokens and GeneratedTokens; others are ignored.
"""

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Final

from benchmarks.serving.errors import BenchmarkError
from tandem_engine.simulate.workload import Arrival, Shape

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


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
