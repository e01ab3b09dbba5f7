"""What a run of pytest came to, read from the file that pytest-reportlog writes; pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

_NO_TESTS: Final = 5
_ENDED_BY_ITSELF: Final = (0, 1)
"""Exit statuses of pytest that its tests explain: all passed, some failed."""
_WORSE: Final = ("passed", "skipped", "failed")
"""Outcomes of the phases of a test; the last of these is that of the test."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed, a file that could not be read, or a run that ended early."""

    node_id: str
    reason: str
    """One line."""


@dataclass(slots=True)
class Outcomes:
    """Numbers of tests, and the failures, of one run or of several."""

    passed: int = 0
    skipped: int = 0
    failures: list[Failure] = field(default_factory=list)
    second_tries: list[Failure] = field(default_factory=list)
    """Failures of tests that passed when they were run once more."""
    skips: dict[str, int] = field(default_factory=dict)
    """Reasons for which tests were skipped → how many were."""
    file_seconds: dict[str, float] = field(default_factory=dict)
    """Files → the time of their tests, and of what those need."""
    passed_ids: set[str] = field(default_factory=set)
    """The tests that passed, of the run that was read."""
    is_interrupted: bool = False
    """True: the user ended the run."""

    @classmethod
    def of_log(cls, lines: Iterable[str], status: int, run: str) -> Self:
        """Read a log; `status` is the exit status of the run named `run`.

        A run whose end its tests do not explain has failed, whatever they did.
        """
        outcomes, reports = cls(), list(_parse(lines))
        for node_id, (outcome, longrepr) in _tests(reports).items():
            outcomes._add(node_id, outcome, longrepr)
        outcomes.file_seconds = _file_seconds(reports)
        has_ended = any(each.get("$report_type") == "SessionFinish" for each in reports)
        if status == _NO_TESTS:
            outcomes.failures.append(Failure(run, "no test was found; its paths hold none"))
        elif status not in _ENDED_BY_ITSELF or (status and not outcomes.failures):
            outcomes.failures.append(Failure(run, f"pytest ended with status {status}, see above"))
        elif not has_ended or not (outcomes.passed or outcomes.skipped or outcomes.failures):
            outcomes.failures.append(Failure(run, "pytest ended before its tests, see above"))
        return outcomes

    def add(self, other: "Outcomes") -> None:
        """Add those of another run."""
        self.passed += other.passed
        self.skipped += other.skipped
        self.failures += other.failures
        self.second_tries += other.second_tries
        for reason, count in other.skips.items():
            self.skips[reason] = self.skips.get(reason, 0) + count
        for file, seconds in other.file_seconds.items():
            self.file_seconds[file] = self.file_seconds.get(file, 0) + seconds

    def failed_tests(self) -> list[str]:
        """Return the ids of the tests that failed."""
        return [each.node_id for each in self.failures if "::" in each.node_id]

    def with_second_try(self, second: "Outcomes") -> "Outcomes":
        """Return these outcomes after the tests that failed were run once more.

        Only one that passed then has not failed: not one that was skipped, or was not reached.
        """
        merged = replace(self, skips=dict(self.skips), file_seconds=dict(self.file_seconds))
        merged.failures, merged.second_tries = [], []
        merged.add(second)
        failed_again = {each.node_id for each in second.failures}
        for failure in self.failures:
            if failure.node_id in second.passed_ids:
                merged.second_tries.append(failure)
            elif failure.node_id not in failed_again:
                merged.failures.append(failure)
        merged.is_interrupted = second.is_interrupted
        return merged

    def _add(self, node_id: str, outcome: str, longrepr: Any) -> None:
        if outcome == "failed":
            self.failures.append(Failure(node_id, _reason(longrepr)))
        elif outcome == "skipped":
            reason = str(longrepr[2] if isinstance(longrepr, list) else longrepr)
            reason = reason.removeprefix("Skipped: ")
            self.skipped += 1
            self.skips[reason] = self.skips.get(reason, 0) + 1
        else:
            self.passed += 1
            self.passed_ids.add(node_id)


def _parse(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield reports up to a line that was cut off, as on a full disk."""
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return


def _tests(reports: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Return the worst outcome of each test, and of each file that is worth a line."""
    tests: dict[str, tuple[str, Any]] = {}
    for report in reports:
        outcome = _outcome(report)
        if outcome is None:
            continue
        before, _ = tests.get(report["nodeid"], (_WORSE[0], None))
        if report["nodeid"] not in tests or _WORSE.index(outcome) > _WORSE.index(before):
            tests[report["nodeid"]] = (outcome, report["longrepr"])
    return tests


def _file_seconds(reports: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for report in reports:
        if report.get("$report_type") == "TestReport":
            file = report["nodeid"].partition("::")[0]
            seconds[file] = seconds.get(file, 0) + report["duration"]
    return seconds


def _outcome(report: Mapping[str, Any]) -> str | None:
    """The outcome of a phase; None: it says nothing, as the set-up of a test that goes on."""
    kind, outcome = report.get("$report_type"), report.get("outcome")
    if kind not in ("TestReport", "CollectReport") or "wasxfail" in report:
        return None
    if outcome == "passed" and report.get("when") != "call":
        return None
    return outcome


def _reason(longrepr: Any) -> str:
    """Return the first line of what was raised; of a file that could not be read, the last."""
    if isinstance(longrepr, Mapping) and longrepr.get("reprcrash"):
        return _line(longrepr["reprcrash"]["message"], 0)
    return _line(str(longrepr), -1)


def _line(text: str, index: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[index] if lines else "no reason was given"
