"""Mean lengths of recent requests, for predictions of what the replica can carry."""

from typing import Final

from tandem_engine.scheduler.latency.capacity import RequestShape

HALF_LIFE: Final = 128
"""Requests after which one has half of its weight."""

FEWEST: Final = 16
"""Answers that must have ended before there is a mean."""

_FADE: Final = 0.5 ** (1.0 / HALF_LIFE)


class RecentRequests:
    """Fading means, for one writing thread; a reader on another may miss the newest request.

    Prompts count when they arrive, so that a queue does not hide them, answers when they end. A
    request of n choices counts as n, the prompt of which is computed once.
    """

    __slots__ = (
        *("_arrivals", "_prompts", "_squares", "_admitted", "_computed"),
        *("_ends", "_outputs", "_decodes", "_context", "_num_ended"),
    )

    def __init__(self) -> None:
        self._arrivals = self._prompts = self._squares = 0.0
        self._admitted = self._computed = 0.0
        self._ends = self._outputs = self._decodes = self._context = 0.0
        self._num_ended = 0

    def arrived(self, num_prompt: int, num_choices: int) -> None:
        """Note a request that was taken."""
        self._arrivals = _FADE * self._arrivals + num_choices
        self._prompts = _FADE * self._prompts + num_choices * num_prompt
        self._squares = _FADE * self._squares + num_choices * num_prompt * num_prompt

    def admitted(self, num_prompt: int, num_cached: int, num_choices: int) -> None:
        """Note the first step of a request, whose prompt is in the prefix cache in part."""
        self._admitted = _FADE * self._admitted + num_choices * num_prompt
        self._computed = _FADE * self._computed + num_prompt - num_cached

    def ended(self, num_prompt: int, num_output: int) -> None:
        """Note a choice that ended well."""
        num_decodes = num_output - 1
        self._ends = _FADE * self._ends + 1.0
        self._outputs = _FADE * self._outputs + num_output
        self._decodes = _FADE * self._decodes + num_decodes
        # Tokens in the cache, summed over the steps that read them.
        self._context = _FADE * self._context + num_decodes * (num_prompt + num_output / 2.0)
        self._num_ended += 1

    def shape(self) -> RequestShape | None:
        """Return the means; None: too few answers have ended."""
        if self._num_ended < FEWEST:
            return None
        prompt, square = self._prompts / self._arrivals, self._squares / self._arrivals
        output = self._outputs / self._ends
        share = min(1.0, self._computed / self._admitted) if self._admitted else 1.0
        return RequestShape(
            prompt=prompt,
            output=output,
            computed=prompt * share,
            # Of prompts with a cached share c, the rest attends to (1 − c²) / 2 of all pairs.
            pairs=square * (1.0 - (1.0 - share) ** 2) / 2.0,
            context=self._context / self._decodes if self._decodes else prompt + output / 2.0,
            spread=square / prompt**2,
        )
