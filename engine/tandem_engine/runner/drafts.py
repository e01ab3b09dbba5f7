"""Draft tokens: guesses that a step checks side by side instead of one after another.

Leviathan et al., "Fast inference from transformers via speculative decoding", 2023. What is
sampled at a position depends on nothing but the tokens before it and the row's seed, so a draft
is right when it is that very token. The output is the same as without drafts, for rows that are
drawn too, and no random number is spent on accepting.
"""

from collections.abc import Sequence
from typing import Protocol

from tandem_engine.api.step import SampledToken


class Drafter(Protocol):
    """Proposes continuations of sequences."""

    def propose(self, tokens: Sequence[int], count: int) -> Sequence[int]:
        """Return at most `count` tokens that may follow `tokens`; none is allowed, too.

        Args:
            tokens: Prompt and output of one sequence.
            count: Most guesses that the step can take.
        """


def usable(proposal: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The first `count` of `proposal`, up to the first id that the model has no embedding for."""
    taken: list[int] = []
    for token_id in proposal[:count]:
        if not 0 <= token_id < vocab_size:
            break
        taken.append(int(token_id))
    return taken


def accepted(
    sampled: Sequence[SampledToken | None], drafts: Sequence[int]
) -> Sequence[SampledToken]:
    """Return the tokens that the row yields: up to the first that its draft did not predict.

    Args:
        sampled: The token at each position: before the first draft, and behind each draft. None
            where the logits were not finite.
        drafts: The guesses.

    Returns:
        1 … drafts + 1 tokens; none when the first position has none.
    """
    tokens: list[SampledToken] = []
    for at, token in enumerate(sampled):
        if token is None:
            break
        tokens.append(token)
        if at < len(drafts) and token.token_id != drafts[at]:
            break
    return tokens
