"""Prompts of an exact number of tokens, and the requests that carry them. Pure."""

import json
from collections.abc import Sequence
from random import Random
from typing import Final

from tandem_engine.simulate.workload import Shape

SAMPLE_TEXT: Final = """\
A baker in a small town opens at 6 and closes at 18. On Monday she sells 240 rolls at 35 cents,
on Tuesday 15 % fewer; how much does she take in two days? Explain each step, then give the
answer in one line. Her neighbour, who repairs clocks (mostly old ones), asks: "Why does a
pendulum keep time?" Compare both trades: tools, hours, risks, and what a beginner must learn.
"""
"""Its tokens, in any order, are the prompts: ordinary ones, and none of them special."""


class PromptSource:
    """Draws prompts of token ids; no two are alike, so that no cache knows their beginnings."""

    def __init__(self, token_ids: Sequence[int], rng: Random) -> None:
        self._token_ids = token_ids
        self._rng = rng

    def draw(self, num_tokens: int) -> list[int]:
        """A prompt of exactly so many tokens."""
        return self._rng.choices(self._token_ids, k=num_tokens)


def completion_body(model: str, prompt: Sequence[int], shape: Shape) -> bytes:
    """A request for exactly `shape.num_output` tokens, streamed, with the usage at its end."""
    document = {
        "model": model,
        "prompt": prompt,
        "max_tokens": shape.num_output,
        "min_tokens": shape.num_output,
        "ignore_eos": True,
        # Past its end a model likes to repeat its end token; unseen, it would have no event.
        "skip_special_tokens": False,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(document, separators=(",", ":")).encode()
