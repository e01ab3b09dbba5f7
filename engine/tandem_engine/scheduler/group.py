"""The sequences of one request: the choices of n and best_of, or the beams of a search."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from tandem_engine.api.request import Request
from tandem_engine.api.step import BeamMove, Candidate
from tandem_engine.scheduler.beam_search import BeamSearch

# What most groups have: a dict of its own for each would be the largest part of them.
_NO_BEAMS: Final[Mapping[str, Any]] = MappingProxyType({})
_NO_CANDIDATES: Final[Mapping[str, tuple[Candidate, ...]]] = MappingProxyType({})
_NO_MOVES: Final[Mapping[str, BeamMove]] = MappingProxyType({})


BeamT = TypeVar("BeamT")
"""A sequence; a parameter, because a sequence knows its group."""


@dataclass(slots=True, eq=False)
class Group(Generic[BeamT]):
    """The sequences of one request, and the state that they share.

    The first of them computes the prompt. The others are forked with their first token, and share
    the blocks of the prompt; from then on choices are independent. Beams stay together: all of
    them are in a step, or none, since the next ones are chosen from all of them.
    """

    request: Request
    number: int
    """Sequences that came before its own."""
    search: BeamSearch | None = None
    """None: the sequences are choices."""
    pending_forks: tuple[str, ...] = ()
    """Ids of sequences that wait for the prompt; the first one's own is not among them."""
    beams: Mapping[str, BeamT] = field(default_factory=lambda: _NO_BEAMS)
    """The live beams by id; empty until the prompt is computed."""
    candidates: Mapping[str, tuple[Candidate, ...]] = field(default_factory=lambda: _NO_CANDIDATES)
    """Continuations of the beams that have yielded already."""
    moves: Mapping[str, BeamMove] = field(default_factory=lambda: _NO_MOVES)
    """Moves of the beams since the last step."""
    is_admitted: bool = False
    """True once its sequences had blocks."""
    dp_rank: int = 0
    """Where its sequences have their blocks, or had them last."""
    is_orphaned: bool = False
    """True if the sequence that computes the prompt was aborted, and the others were not."""
    num_left: int = 0
    """Sequences of it that have not ended."""


def group_of(request: Request, *, number: int) -> Group[BeamT]:
    """Return the group of `request`, whose sequences come after `number` others."""
    others = request.sequences[1:]
    if not request.sampling.use_beam_search:
        return Group(request, number, pending_forks=others, num_left=len(others) + 1)
    sampling = request.sampling
    search = BeamSearch(
        sequence_ids=request.sequences,
        num_best=sampling.n,
        max_new_tokens=request.max_new_tokens,
        min_new_tokens=sampling.min_tokens,
        stop_token_ids=request.stop_token_ids,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
    )
    return Group(request, number, search, others, num_left=len(others) + 1)
