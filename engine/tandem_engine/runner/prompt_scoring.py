"""The positions of a step at which tokens of prompts are scored, and what comes of them.

A chunk's logits at each of its positions say how likely the prompt's next token was. All of them at
once would be gigabytes, so a forward pass hands them over in slices, of which scores are kept.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tandem_engine.api.output import PromptLogprobs
from tandem_engine.device.attention import Ints
from tandem_engine.device.host_memory import HostInts
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.token_scores import NUM_OWN, TokenScorer

_FLOAT: Final = "f"
_INT: Final = "i"


class ScoredPart(NamedTuple):
    """A part of a prompt that a step scores: the tokens behind some of its positions."""

    sequence_id: str
    token_ids: Sequence[int]
    num_top: int
    """Likeliest tokens that the request asks for."""


@dataclass(slots=True, eq=False, kw_only=True)
class PromptScoring:
    """Positions of a flat batch and the tokens that follow them; implements `model.stages.Scoring`.

    Each executor fills `scores` of the batch that it is given, before its logits are there.
    """

    at: HostInts
    """[positions]: indices of tokens."""
    token_ids: HostInts
    """[positions]: the tokens that follow."""
    num_top: int
    """Likeliest tokens at each: the most that a request of the step asks for."""
    parts: Sequence[ScoredPart] = ()
    """The sequences that they are of; on other ranks than 0 none are known."""
    scores: Tensor = field(init=False)
    """float32 [positions, columns], as `TokenScorer.score` gives them."""
    scorer: TokenScorer | None = None
    """The executor's; None: another rank scores."""

    def __post_init__(self) -> None:
        self.scores = torch.empty(
            len(self.at), NUM_OWN + 2 * self.num_top, device=self.at.device, dtype=torch.float32
        )

    @property
    def num_rows(self) -> int:
        """Positions."""
        return len(self.at)

    def score(self, rows: slice, logits: Tensor) -> None:
        """See `model.stages.Scoring`."""
        assert self.scorer is not None, "another rank scores; this is a bug"  # noqa: S101
        self.scores[rows] = self.scorer.score(logits, self.token_ids.tensor[rows], self.num_top)

    def of_tokens(self, tokens: Ints) -> "PromptScoring | None":
        """The positions among some tokens, in ascending order, of a batch that has no others.

        None: they are none of them.
        """
        chosen = np.flatnonzero(np.isin(self.at.array, tokens, assume_unique=True))
        if not len(chosen):
            return None
        at = np.searchsorted(tokens, self.at.array[chosen])
        return PromptScoring(
            at=HostInts(at, self.at.device),
            token_ids=HostInts(self.token_ids.array[chosen], self.at.device),
            num_top=self.num_top,
        )

    def by_sequence(self) -> tuple[dict[str, PromptLogprobs], list[str]]:
        """The log-probabilities of each sequence; and those whose logits are not finite."""
        scored: dict[str, PromptLogprobs] = {}
        failed: list[str] = []
        scores, first = self.scores.cpu().numpy(), 0
        for part in self.parts:
            own = scores[first : first + len(part.token_ids)]
            first += len(own)
            if np.isnan(own[:, 0]).any():
                failed.append(part.sequence_id)
            else:
                scored[part.sequence_id] = _logprobs_of(part, own, self.num_top)
        return scored, failed


@dataclass(slots=True)
class ScoredColumns:
    """The positions of a step, to which one row after another is added."""

    at: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    parts: list[ScoredPart] = field(default_factory=list)

    def add(self, row: Row, start: int, end: int, first: int) -> None:
        """Add the positions `start` … `end`−1 of a row's prompt that are not scored yet.

        The last token of a prompt is followed by one that is sampled.

        Args:
            row: The sequence.
            start: Its first position in the step.
            end: The one behind its last.
            first: Index of its first token in the batch.
        """
        begin, stop = max(start, row.num_scored), min(end, len(row.prompt) - 1)
        num_top = row.sampling.prompt_logprobs
        if begin >= stop or num_top is None:
            return
        self.at += range(first + begin - start, first + stop - start)
        token_ids = row.prompt[begin + 1 : stop + 1]
        self.token_ids += token_ids
        self.parts.append(ScoredPart(row.sequence_id, token_ids, num_top))

    def scoring(self, device: torch.device) -> PromptScoring | None:
        """Positions that are scored; None: nothing."""
        if not self.parts:
            return None
        return PromptScoring(
            at=HostInts.of(self.at, device),
            token_ids=HostInts.of(self.token_ids, device),
            num_top=max(part.num_top for part in self.parts),
            parts=self.parts,
        )


def note_scored(parts: Sequence[ScoredPart], rows: Mapping[str, Row]) -> None:
    """Note what is on its way: a sequence that is computed again is not scored again."""
    for part in parts:
        rows[part.sequence_id].num_scored += len(part.token_ids)


def _logprobs_of(part: ScoredPart, scores: "np.ndarray", width: int) -> PromptLogprobs:
    num_top = part.num_top
    ids = scores[:, NUM_OWN : NUM_OWN + num_top]
    logprobs = scores[:, NUM_OWN + width : NUM_OWN + width + num_top]
    return PromptLogprobs(
        token_ids=tuple(part.token_ids),
        logprobs=array(_FLOAT, scores[:, 0].tobytes()),
        ranks=array(_INT, scores[:, 1].astype(np.intc).tobytes()),
        num_top=num_top,
        top_ids=array(_INT, ids.astype(np.intc).tobytes()),
        top_logprobs=array(_FLOAT, logprobs.tobytes()),
    )
