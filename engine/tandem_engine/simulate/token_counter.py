"""A model's place in a simulated replica: it says when a row yields a token, and which."""

from collections.abc import Sequence

from tandem_engine.api.request import Request
from tandem_engine.api.step import SampledToken, Step, StepResult


class TokenCounter:
    """Counts tokens: the k-th one of every answer is k.

    For requests of one sequence, without beams, which loads do not have.
    """

    def __init__(self) -> None:
        # Of each sequence: its known tokens, and how many of them are the answer's.
        self._known: dict[str, int] = {}
        self._outputs: dict[str, int] = {}

    def add(self, request: Request) -> None:
        """Add a request."""
        (name,) = request.sequences
        self._known[name] = len(request.prompt_token_ids)
        self._outputs[name] = 0

    def run(self, step: Step) -> StepResult:
        """Count further for each row whose known tokens are all computed."""
        tokens: dict[str, Sequence[SampledToken]] = {}
        for name, start, count in zip(step.sequence_ids, step.starts, step.num_tokens, strict=True):
            drafts = step.drafts.get(name, ())
            if start + count - len(drafts) == self._known[name]:
                first = self._outputs[name]
                num_new = 1 + _num_right(drafts, first)
                tokens[name] = [SampledToken(first + at) for at in range(num_new)]
                self._outputs[name] += num_new
                self._known[name] += num_new
        return StepResult(tokens=tokens, candidates={})

    def num_output(self, sequence_id: str) -> int:
        """Return the tokens of an answer so far: the next one is this number."""
        return self._outputs[sequence_id]

    def remove(self, sequence_id: str) -> None:
        """Forget a sequence."""
        self._known.pop(sequence_id, None)
        self._outputs.pop(sequence_id, None)


def _num_right(drafts: Sequence[int], first: int) -> int:
    for at, token_id in enumerate(drafts):
        if token_id != first + at:
            return at
    return len(drafts)
