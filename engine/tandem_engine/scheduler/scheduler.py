"""The scheduler: schedule a step, complete it, and let requests come and go in between.

Pure: no tensor, no clock, no chance. The same calls give the same steps.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tandem_engine.api.config import ScheduleConfig, TemplateType
from tandem_engine.api.output import EngineStats
from tandem_engine.api.request import Request
from tandem_engine.api.step import Advance, SampledToken, Step
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.batch import Batch
from tandem_engine.scheduler.mix import MixTemplate
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.sequence import sequence_of
from tandem_engine.scheduler.standard import StandardTemplate
from tandem_engine.scheduler.template import Template

TEMPLATES: Final[Mapping[TemplateType, Callable[[], Template]]] = {
    "Standard": StandardTemplate,
    "Mix": MixTemplate,
}


class Scheduler:
    """Iteration-level scheduling over a pool of KV blocks."""

    def __init__(self, schedule: ScheduleConfig, pool: BlockPool) -> None:
        self._schedule = schedule
        self._pool = pool
        self._queues = Queues(pool)
        self._template = TEMPLATES[schedule.template_type]()

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        return self._queues.num_running + self._queues.num_waiting > 0

    def add(self, request: Request) -> None:
        """Let a request wait for its first step."""
        self._queues.push(sequence_of(request))

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks, at any time; tell whether it was known."""
        return self._queues.remove(request_id)

    def schedule(self) -> Step:
        """Decide what the next step computes."""
        batch = Batch(self._schedule, self._queues, self._pool)
        self._template.fill(batch, self._queues, self._schedule)
        return batch.build()

    def complete(self, step: Step, sampled: Mapping[str, SampledToken]) -> list[Advance]:
        """Book what a step computed; return the requests that got a token.

        Requests that were aborted while the step ran are passed over.
        """
        advances = [
            self._advance(request_id, num_tokens, sampled.get(request_id))
            for request_id, num_tokens in step.num_tokens.items()
        ]
        return [advance for advance in advances if advance is not None]

    def reconfigure(self, schedule: ScheduleConfig) -> None:
        """Take over new settings from the next step on; running requests keep their blocks."""
        if schedule.template_type != self._schedule.template_type:
            self._template = TEMPLATES[schedule.template_type]()
        self._schedule = schedule

    def stats(self) -> EngineStats:
        """Queues and blocks as data."""
        return EngineStats(
            num_running=self._queues.num_running,
            num_waiting=self._queues.num_waiting,
            num_kv_blocks=self._pool.num_blocks,
            num_free_kv_blocks=self._pool.num_free,
            num_preemptions=self._queues.num_preemptions,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost or held twice."""
        self._pool.check_integrity()
        tables = [block for sequence in self._queues for block in sequence.block_table]
        if len(tables) != self._pool.num_held or len(set(tables)) != len(tables):
            raise AssertionError(
                f"{len(tables)} KV blocks stand in block tables, {self._pool.num_held} are held; "
                f"this is a bug."
            )

    def _advance(
        self, request_id: str, num_tokens: int, token: SampledToken | None
    ) -> Advance | None:
        sequence = self._queues.find(request_id)
        if sequence is None:
            return None
        sequence.num_computed += num_tokens
        if token is None:
            return None
        finish_reason = sequence.append(token.token_id)
        if finish_reason is not None:
            self._queues.remove(request_id)
        return Advance(request_id, token, finish_reason)
