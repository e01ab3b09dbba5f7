"""What a run of pytest came to, read from the file that pytest-reportlog writes; pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

_NO_TESTS: Final = 5
_ENDED_BY_ITSELF: Final = (0, 1)
"""Exit statuses of pytest that its tests explain: all passed, some failed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed, or a file that could not be read."""

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

    @classmethod
    def of_log(cls, lines: Iterable[str], status: int, run: str) -> Self:
        """Read a log; `status` is the exit status of the run named `run`.

        A run whose end its tests do not explain has failed, whatever they did.
        """
        outcomes = cls()
        for line in lines:
            outcomes._add_report(json.loads(line))
        if status == _NO_TESTS:
            outcomes.failures.append(Failure(run, "no test was found; its paths hold none"))
        elif status not in _ENDED_BY_ITSELF or (status and not outcomes.failures):
            outcomes.failures.append(Failure(run, f"pytest ended with status {status}, see above"))
        return outcomes

    def add(self, other: "Outcomes") -> None:
        """Add those of another run."""
        self.passed += other.passed
        self.skipped += other.skipped
        self.failures += other.failures
        self.second_tries += other.second_tries
        for reason, count in other.skips.items():
            self.skips[reason] = self.skips.get(reason, 0) + count

    def failed_tests(self) -> list[str]:
        """Return the ids of the tests that failed, each once."""
        return list(dict.fromkeys(each.node_id for each in self.failures if "::" in each.node_id))

    def with_second_try(self, second: "Outcomes") -> "Outcomes":
        """Return these outcomes after the tests that failed were run once more."""
        merged = Outcomes(passed=self.passed, skipped=self.skipped, skips=dict(self.skips))
        merged.add(second)
        retried, failed = set(self.failed_tests()), set(second.failed_tests())
        for failure in self.failures:
            if failure.node_id not in retried:
                merged.failures.append(failure)
            elif failure.node_id not in failed and not second.is_broken():
                merged.second_tries.append(failure)
        return merged

    def is_broken(self) -> bool:
        """Return True when more than tests failed: a file could not be read, or pytest ended."""
        return any("::" not in each.node_id for each in self.failures)

    def _add_report(self, report: Mapping[str, Any]) -> None:
        kind, outcome = report.get("$report_type"), report.get("outcome")
        if kind not in ("TestReport", "CollectReport"):
            return
        if outcome == "failed":
            self.failures.append(Failure(report["nodeid"], _reason(report["longrepr"])))
        elif outcome == "skipped" and "wasxfail" not in report:
            self._skip(report["longrepr"])
        elif outcome == "passed" and report.get("when") == "call":
            self.passed += 1

    def _skip(self, longrepr: Any) -> None:
        reason = str(longrepr[2] if isinstance(longrepr, list) else longrepr)
        reason = reason.removeprefix("Skipped: ")
        self.skipped += 1
        self.skips[reason] = self.skips.get(reason, 0) + 1


def _reason(longrepr: Any) -> str:
    """Return the first line of what was raised; of a file that could not be read, the last."""
    if isinstance(longrepr, Mapping) and longrepr.get("reprcrash"):
        return _line(longrepr["reprcrash"]["message"], 0)
    return _line(str(longrepr), -1)


def _line(text: str, index: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[index] if lines else "no reason was given"
