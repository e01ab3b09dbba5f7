"""Drafts of which a given share is right, and what they take."""

from dataclasses import dataclass
from typing import Final

from tandem_engine.api.drafts import Draft, DraftLimits, Proposals
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.simulate.random_numbers import RandomNumbers
from tandem_engine.simulate.token_counter import TokenCounter

WRONG: Final = 1 << 30
"""A token that no answer has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPrices:
    """How good drafts are, and how long the draft model takes."""

    hit_rate: float = 0.5
    """Share of the sequences for which a text has a guess."""
    right: float = 0.7
    """Share of the drafts that are right behind right ones."""
    pass_s: float = 1e-3
    """Seconds of a forward pass of the draft model."""


class SimulatedDrafts:
    """What stands for n-grams and a draft model.

    Args:
        speculation: The method, and the most drafts of a sequence.
        prices: Their quality and their time.
        rng: Decides which are right.
    """

    def __init__(
        self, speculation: SpeculationConfig, prices: DraftPrices, rng: RandomNumbers
    ) -> None:
        self.speculation = speculation
        self._prices, self._rng = prices, rng

    def propose(self, limits: DraftLimits, counter: TokenCounter) -> Proposals:
        """Return drafts within the limits; a draft model guesses for those without a text."""
        drafts = {
            name: Draft("ngram", self._guesses(counter.num_output(name), count))
            for name, count in limits.ngram.items()
            if self._rng.random() < self._prices.hit_rate
        }
        others = {name: count for name, count in limits.draft.items() if name not in drafts}
        for name, count in others.items():
            drafts[name] = Draft("draft", self._guesses(counter.num_output(name), count))
        num_passes = max(others.values(), default=0)
        return Proposals(
            drafts=drafts, num_computed=sum(others.values()) + len(others), num_passes=num_passes
        )

    def seconds(self, proposals: Proposals) -> float:
        """Return the time that proposing took."""
        return proposals.num_passes * self._prices.pass_s

    def _guesses(self, first: int, count: int) -> list[int]:
        return [
            first + at if self._rng.random() < self._prices.right else WRONG for at in range(count)
        ]
