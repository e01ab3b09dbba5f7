"""What is said at the end of a run: the time of each part, skips, failures, how to repeat one."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tools.suite.outcomes import Outcomes

_LINE: Final = 160
_NUM_LONGEST: Final = 10
"""Files of a part that are named: those where seconds can be saved."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stage or an area that has run."""

    name: str
    seconds: float
    outcomes: Outcomes


def report(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the lines: what failed comes last but for the count, where it is looked for."""
    total = Outcomes()
    for part in parts:
        total.add(part.outcomes)
    yield f"{'':24}    time   passed   failed  skipped"
    for part in (*parts, Part("all", sum(part.seconds for part in parts), total)):
        yield _row(part)
    for part in parts:
        yield from _longest(part)
    for reason, count in total.skips.items():
        yield f"skipped {count}: {reason}"
    for failure in total.second_tries:
        yield f"passed on a second try: {failure.node_id}"
        yield f"       failed first with: {failure.reason[:_LINE]}"
    yield from _failures(total)
    yield f"{total.passed} passed, {len(total.failures)} failed, {total.skipped} skipped"


def _row(part: Part) -> str:
    minutes, seconds = divmod(round(part.seconds), 60)
    outcomes = part.outcomes
    counts = f"{outcomes.passed:9}{len(outcomes.failures):9}{outcomes.skipped:9}"
    return f"{part.name:24}{minutes:5}:{seconds:02}{counts}"


def _longest(part: Part) -> Iterator[str]:
    files = sorted(part.outcomes.file_seconds.items(), key=lambda file: -file[1])
    if len(files) <= 1:
        return
    yield f"longest of {part.name}, with what their tests need:"
    for file, seconds in files[:_NUM_LONGEST]:
        yield f"{seconds:8.1f} s  {file}"


def _failures(total: Outcomes) -> Iterator[str]:
    if not total.failures:
        return
    yield ""
    for failure in total.failures:
        yield f"FAILED {failure.node_id}"
        yield f"       {failure.reason[:_LINE]}"
    if tests := total.failed_tests():
        yield f"Repeat one: .venv/bin/pytest {shlex.quote(tests[0])}"
