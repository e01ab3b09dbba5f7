"""The scheduler: schedule a step, complete it, and let requests come and go in between.

Pure: no tensor, no clock, no chance. The same calls at the same times give the same steps.
"""

from collections.abc import Mapping
from math import inf

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.output import EngineStats
from tandem_engine.api.request import Request
from tandem_engine.api.slo import Slo
from tandem_engine.api.step import Advance, Step, StepResult
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.blocks import Blocks
from tandem_engine.scheduler.booking import Booking
from tandem_engine.scheduler.group import group_of
from tandem_engine.scheduler.policies import Policies
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.records import Records
from tandem_engine.scheduler.round import Round
from tandem_engine.scheduler.sequence import Sequence, first_sequence


class Scheduler:
    """Iteration-level scheduling over a pool of KV blocks.

    Args:
        schedule: MindIE's parameters.
        pool: The KV blocks.
        host: Host blocks for sequences that are swapped out; None: there are none.
        slo: The promised latencies.
        most_drafts: Draft tokens of a decode row; 0: no speculation.
    """

    def __init__(
        self,
        schedule: ScheduleConfig,
        pool: BlockPool,
        *,
        host: HostPool | None = None,
        slo: Slo | None = None,
        most_drafts: int = 0,
    ) -> None:
        self._blocks = Blocks(pool, host or HostPool(0))
        self._policies = Policies(schedule, slo or Slo())
        self._queues = Queues(self._policies.prompt_order)
        self._booking = Booking(self._queues, self._blocks, has_drafts=most_drafts > 0)
        self._most_drafts = most_drafts
        self._number = 0
        self.records = Records()
        self._apply(schedule)

    @property
    def has_work(self) -> bool:
        """Whether any request runs or waits."""
        return self._queues.has_any

    @property
    def wake_at(self) -> float:
        """Seconds; after an empty step, when the next one may have somebody in it."""
        return self.records.last.wake_at if self.records.last else -inf

    def add(self, request: Request) -> None:
        """Let a request wait for its first step."""
        group = group_of(request, number=self._number)
        self._number += len(request.sequences)
        pool = self._blocks.pool
        sequence = first_sequence(
            group, block_size=pool.block_size, keeps_keys=pool.caches_prefixes
        )
        self._queues.expect(sequence)

    def can_ever_hold(self, request: Request) -> bool:
        """Whether the KV blocks suffice for a request, were it alone."""
        return self._blocks.can_ever_hold(group_of(request, number=0))

    def abort(self, sequence_id: str) -> bool:
        """Forget a sequence and free its blocks, at any time; tell whether it was known.

        Beams end together. The one that computes a prompt for others goes on until it is done.
        """
        sequence = self._queues.find(sequence_id)
        if sequence is None:
            return False
        group = sequence.group
        if group.search is not None:
            self._booking.lockstep.end(group)
        elif sequence.sequence_id != sequence_id:
            self._drop_unborn(sequence, sequence_id)
        elif group.unborn:
            group.is_orphaned = True
        else:
            self._booking.end(sequence)
        return True

    def take_ended(self) -> list[str]:
        """Ids of the sequences that have ended since the last call, however they did."""
        return self._queues.take_ended()

    def schedule(self, now: float) -> Step:
        """Decide what the next step computes.

        Args:
            now: Seconds, on the clock of `Request.arrived`.
        """
        policies, queues = self._policies, self._queues
        step = Round(
            schedule=policies.schedule,
            queues=queues,
            blocks=self._blocks,
            now=now,
            limits=policies.limits(queues, self._blocks, now),
            victims=policies.victims,
            most_drafts=self._most_drafts,
        )
        self._claim(step)
        policies.strategy.fill(step)
        step.unlock(policies.prompt_order)
        load = step.load()
        return self.records.open(step, load, predicted_s=policies.predict(load))

    def complete(self, step: Step, result: StepResult, now: float) -> list[Advance]:
        """Book what a step computed; return the sequences that got tokens.

        Sequences that were aborted while the step ran are passed over, those that failed are
        forgotten.

        Args:
            step: What `schedule` returned last.
            result: What the runner made of it.
            now: Seconds.
        """
        record, rows = self.records.close(now)
        for sequence_id in self.all_of(result.failed):
            self.abort(sequence_id)
        advances = self._booking.book(step, rows, result, now)
        self._policies.learn(record)
        return advances

    def all_of(self, failed: Mapping[str, str]) -> dict[str, str]:
        """`failed`, and the sequences that fail with them: other beams, choices not born yet."""
        every: dict[str, str] = {}
        for sequence_id, cause in failed.items():
            every[sequence_id] = cause
            sequence = self._queues.find(sequence_id)
            if sequence is not None:
                group = sequence.group
                together = group.request.sequences if group.search else group.unborn
                every |= dict.fromkeys(together, cause)
        return every

    def reconfigure(self, schedule: ScheduleConfig, slo: Slo | None = None) -> None:
        """Take over new settings from the next step on; running requests keep their blocks."""
        self._policies.reconfigure(schedule, slo)
        self._queues.waiting.reorder(self._policies.prompt_order)
        self._apply(schedule)

    def stats(self) -> EngineStats:
        """Queues and blocks as data."""
        queues, blocks = self._queues, self._blocks
        return EngineStats(
            num_running=queues.num_running,
            num_waiting=len(queues.waiting),
            num_swapped=len(queues.swapped),
            num_kv_blocks=blocks.pool.num_blocks,
            num_free_kv_blocks=blocks.pool.num_free,
            num_cached_kv_blocks=blocks.pool.num_cached,
            num_host_blocks=blocks.host.num_blocks,
            num_free_host_blocks=blocks.host.num_free,
            num_preemptions=self.records.num_recomputed + self.records.num_swapped,
            num_swaps=self.records.num_swapped,
            num_asked_tokens=blocks.num_asked_tokens,
            num_hit_tokens=blocks.num_hit_tokens,
            num_evicted_blocks=blocks.pool.num_evictions,
            tpot_pace=self._policies.pace.share if self._policies.slo.tpot else None,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost, or held by another number than holds it.

        Or when a sequence lacks one unnoticed, or a sum is not that of its parts.
        """
        queues, short = self._queues, set(self._blocks.short())
        if any(one.is_short and one not in short for one in queues.decoding.values()):
            raise AssertionError("A sequence needs a block and nobody knows; this is a bug.")
        if queues.longest_tokens != sum(one.max_total for one in queues.running()):
            raise AssertionError("The tokens of those that run are miscounted; this is a bug.")
        tables = [sequence.table for sequence in self._queues]
        self._blocks.pool.check_integrity(tables)
        self._blocks.host.check_integrity()

    def _apply(self, schedule: ScheduleConfig) -> None:
        self._blocks.switch_prefix_cache(on=schedule.enable_prefix_cache)
        self._blocks.no_evict = schedule.no_evict
        self._booking.pace = self._policies.pace if self._policies.slo.tpot else None
        self._queues.waiting.age_bound_s = self._policies.age_bound_s

    def _claim(self, step: Round) -> None:
        """maxFirstTokenWaitTime: a request that found no blocks for so long takes another's."""
        oldest = self._queues.waiting.oldest
        if oldest is None or not oldest.is_fresh or not self.records.lacked_blocks:
            return
        if step.schedule.no_evict:
            return
        if step.now - oldest.arrived > step.schedule.max_first_token_wait_time / 1e3:
            step.claim(oldest)

    def _drop_unborn(self, first: Sequence, sequence_id: str) -> None:
        first.group.unborn = tuple(one for one in first.group.unborn if one != sequence_id)
        self._queues.forget(sequence_id)
        self._queues.stand_for(first, first.rows - 1)
        self._booking.leave(first.group)
        if first.group.is_orphaned and not first.group.unborn:
            self._booking.end(first)
