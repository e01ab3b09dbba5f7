"""Drafts without a model: what stood behind the same tokens before."""

from collections.abc import Sequence
from typing import Final

from tandem_engine.api.request import Request
from tandem_engine.speculation.ngrams import NgramTable
from tandem_engine.speculation.written_texts import SIZE, WrittenTexts

OWN_SIZES: Final = (4, 3, 2)
_SURE: Final = 3
"""Length of an n-gram of the own text that goes before one of another text."""
MOST_OWN_TOKENS: Final = 1 << 14
"""Last tokens of prompt and output that are looked up in; indexing more would hold a step up."""


class NgramDrafter:
    """Implements `runner.drafts.Drafter`.

    A sequence is continued from its own text where its last three tokens or more stood there, then
    from what other requests of its tenant have written, then from its own by two tokens.
    """

    def __init__(self, texts: WrittenTexts | None = None) -> None:
        self._texts = texts or WrittenTexts()
        self._own: dict[str, _OwnText] = {}

    def propose(
        self, sequence_id: str, request: Request, output: Sequence[int], count: int
    ) -> Sequence[int]:
        """Look up what followed; see `Drafter`."""
        own = self._own.get(sequence_id)
        if own is None:
            own = self._own[sequence_id] = _OwnText(request.prompt_token_ids)
        own.follow(output)
        tail = own.tail
        return (
            own.table.continuation(tail, count, shortest=_SURE)
            or self._texts.continuation(request.cache_salt, tail, count)
            or own.table.continuation(tail, count)
        )

    def forget(self, sequence_id: str, request: Request, output: Sequence[int]) -> None:
        """Keep what it wrote for others."""
        self._own.pop(sequence_id, None)
        self._texts.add(request.cache_salt, request.prompt_token_ids, output)


class _OwnText:
    """The text of one sequence as far as it is indexed."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.table = NgramTable(OWN_SIZES, capacity=2 * MOST_OWN_TOKENS)
        self.table.extend(prompt[-MOST_OWN_TOKENS:])
        self.tail: Sequence[int] = prompt[-SIZE:]
        self._num_output = 0

    def follow(self, output: Sequence[int]) -> None:
        """Index the tokens that have come since."""
        new = output[self._num_output :]
        if new:
            self.table.extend(new)
            self.tail = (*self.tail, *new)[-SIZE:]
            self._num_output = len(output)
