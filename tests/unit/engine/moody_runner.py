"""A runner whose steps fail when they are told to."""

from collections import Counter
from typing import Any

from tandem_engine.api.step import Step, StepResult
from tandem_engine.testing import CountingRunner
from tests.unit.engine.scheduling import Bench


class MoodyRunner(CountingRunner):
    """Fails rows and raises when it is told to, and lets clients leave while a step runs."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.leaves: str | None = None
        self.fails = 0
        """The row that fails, from 1 on, modulo the rows; 0: none does."""
        self.raises = False
        self.loses_rows = False
        self.bench: Bench
        self.removed: Counter[str] = Counter()

    def submit(self, step: Step) -> Any:
        if self.bench.scheduler._num_stages > 1:
            self.check_knows(step)
        return super().submit(step)

    def check_knows(self, step: Step) -> None:
        """No row of a step waits for a token of another one that is still computed."""
        for each, start, count in zip(step.sequence_ids, step.starts, step.num_tokens, strict=True):
            prompt = self._sequences[each].request.prompt_token_ids
            assert start + count <= len(prompt) + len(self.bench.said.get(each, ())), each

    def run(self, step: Step) -> StepResult:
        raises, self.raises = self.raises, False
        loses_rows, self.loses_rows = self.loses_rows, False
        fails, self.fails = self.fails, 0
        leaves, self.leaves = self.leaves, None
        if raises:
            self.begin(step)
            raise RuntimeError("no such kernel")
        if loses_rows:
            self.begin(step)
            self.copy(step)
            self.lose(step.sequence_ids)
            return StepResult(failed=dict.fromkeys(step.sequence_ids, "no such kernel"))
        result = super().run(step)
        if leaves is not None:
            self.bench.engine.abort(leaves)
        if not fails or not step.sequence_ids:
            return result
        victim = step.sequence_ids[fails % len(step.sequence_ids)]
        return StepResult(
            tokens={key: value for key, value in result.tokens.items() if key != victim},
            candidates={key: value for key, value in result.candidates.items() if key != victim},
            failed={victim: "its logits are no numbers"},
        )

    def remove(self, sequence_id: str) -> None:
        self.removed[sequence_id] += 1
        super().remove(sequence_id)
