"""Stand-ins whose answers can be worked out on paper; for tests, the simulator and the docs."""

from tandem_engine.api.request import Request
from tandem_engine.api.step import SampledToken, Step, StepResult


class CountingRunner:
    """A runner without a model: the k-th token of every request is k (0, 1, 2 …).

    It keeps the promises of `tandem_engine.api.step.Runner` and checks the scheduler's: no row
    starts before it was added, none computes what is computed already or leaves a hole, and
    every token to be computed has a slot in a block that is the row's own.
    """

    def __init__(self, *, block_size: int) -> None:
        self._block_size = block_size
        self._known: dict[str, int] = {}
        self._prompt: dict[str, int] = {}
        self._computed: dict[str, int] = {}

    def add(self, request: Request) -> None:
        """Learn a request."""
        self._prompt[request.request_id] = len(request.prompt_token_ids)
        self._known[request.request_id] = len(request.prompt_token_ids)
        self._computed[request.request_id] = 0

    def run(self, step: Step) -> StepResult:
        """Count one further for each row whose known tokens are all computed."""
        self._check_blocks(step)
        for request_id in step.preempted:
            self._computed[request_id] = 0
        tokens = {
            request_id: self._next(request_id)
            for request_id, num_tokens in step.num_tokens.items()
            if self._compute(request_id, step.starts[request_id], num_tokens)
        }
        return StepResult(tokens=tokens)

    def remove(self, request_id: str) -> None:
        """Forget a request."""
        self._prompt.pop(request_id, None)
        self._known.pop(request_id, None)
        self._computed.pop(request_id, None)

    def _next(self, request_id: str) -> SampledToken:
        token = self._known[request_id] - self._prompt[request_id]
        self._known[request_id] += 1
        return SampledToken(token)

    def _compute(self, request_id: str, start: int, num_tokens: int) -> bool:
        assert num_tokens > 0, f"{request_id} computes nothing"
        assert start == self._computed[request_id], f"{request_id} starts at {start}"
        self._computed[request_id] += num_tokens
        assert self._computed[request_id] <= self._known[request_id]
        return self._computed[request_id] == self._known[request_id]

    def _check_blocks(self, step: Step) -> None:
        owned = [block for table in step.block_tables.values() for block in table]
        assert len(owned) == len(set(owned)), "two rows share a block"
        for request_id, num_tokens in step.num_tokens.items():
            slots = len(step.block_tables[request_id]) * self._block_size
            assert step.starts[request_id] + num_tokens <= slots, f"{request_id} lacks a block"
