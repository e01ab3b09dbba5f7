"""Who failed how often, over several runs; pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tools.suite.outcomes import Outcomes

_LINE: Final = 140


@dataclass(slots=True)
class Failing:
    """A test that failed in some runs."""

    seeds: list[int] = field(default_factory=list)
    reason: str = ""
    """That of the first time."""


@dataclass(slots=True)
class FailureCounts:
    """The outcomes of runs so far."""

    num_runs: int = 0
    failing: dict[str, Failing] = field(default_factory=dict)

    def add(self, seed: int, outcomes: Outcomes) -> None:
        """Add a run; a test that failed twice in it, as in its call and its end, counts once."""
        self.num_runs += 1
        for failure in outcomes.failures:
            failing = self.failing.setdefault(failure.node_id, Failing(reason=failure.reason))
            if seed not in failing.seeds:
                failing.seeds.append(seed)

    def lines(self) -> Iterator[str]:
        """Yield the tests that failed, the most frequent first, with reason and seeds."""
        often = sorted(self.failing.items(), key=lambda item: (-len(item[1].seeds), item[0]))
        for node_id, failing in often:
            yield f"failed {len(failing.seeds)} of {self.num_runs}: {node_id}"
            yield f"       {failing.reason[:_LINE]}"
            yield f"       seeds {', '.join(map(str, failing.seeds))}"
        yield f"{len(often)} tests failed in {self.num_runs} runs"
