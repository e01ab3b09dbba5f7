"""The scheduler: schedule a step, complete it, and let requests come and go in between.

Pure: no tensor, no clock, no chance. The same calls at the same times give the same steps.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Pools
from math import inf

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.drafts import NO_PROPOSALS, DraftLimits, Proposals
from tandem_engine.api.output import EngineStats
from tandem_engine.api.request import Request
from tandem_engine.api.slo import Slo
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.api.step import Advance, Step, StepResult
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.deadlines import Deadlines
from tandem_engine.scheduler.drafting import Drafting
from tandem_engine.scheduler.group import group_of
from tandem_engine.scheduler.kv_blocks import KVBlocks
from tandem_engine.scheduler.latency.step_model import StepPrices
from tandem_engine.scheduler.policies.policy_set import PolicySet
from tandem_engine.scheduler.preemption import Preemptor
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.records.records import OpenStep, Records
from tandem_engine.scheduler.sequence import Sequence, SequenceGroup, first_sequence
from tandem_engine.scheduler.step_builder import StepBuilder
from tandem_engine.scheduler.step_rows import StepRows
from tandem_engine.scheduler.update import StepUpdater
from tandem_engine.scheduler.wait_reasons import WaitReasons


def only_tokens_are_open(newest: OpenStep, queues: Queues) -> bool:
    """Return True if all is known of the newest step but its tokens.

    Each row gets one then, and no next step depends on which. Otherwise the next step has to wait:
    beams go on with the tokens of one another, choices are forked, and swapped sequences come back
    when others have gone.
    """
    if not newest.rows or queues.num_beam_groups or queues.swapped:
        return False
    return all(row.is_plain for row in newest.rows)


class Scheduler:
    """Iteration-level scheduling over a pool of KV blocks.

    Args:
        schedule: MindIE's parameters.
        pool: The KV blocks; those of each dp rank, where there are several (`dp_pools`).
        host: Host blocks for sequences that are swapped out, likewise; None: there are none.
        slo: The latency targets.
        speculation: Draft tokens of decode rows; None: there are none.
        draft_price: Cost of a token to the draft model, as a share of its cost to the model.
        num_stages: Pipeline stages of the runner: so many steps are computed at the same time.
    """

    def __init__(
        self,
        schedule: ScheduleConfig,
        pool: BlockPool | Pools[BlockPool],
        *,
        host: HostPool | Pools[HostPool] | None = None,
        slo: Slo | None = None,
        speculation: SpeculationConfig | None = None,
        draft_price: float = 0.0,
        num_stages: int = 1,
    ) -> None:
        pools = (pool,) if isinstance(pool, BlockPool) else pool
        hosts = (host,) if isinstance(host, HostPool) else host
        self._blocks = KVBlocks(pools, hosts or [HostPool(0) for _ in pools])
        self._policies = PolicySet(schedule, slo or Slo())
        self._queues = Queues(self._policies.prompt_order)
        self._deadlines = Deadlines(lambda each: self._queues.find(each) is not None)
        self._drafting = Drafting(
            speculation or SpeculationConfig(), self._policies.model, token_price=draft_price
        )
        self._updater = StepUpdater(self._queues, self._blocks, has_drafts=self._drafting.is_on)
        self._num_stages = num_stages
        self._number = 0
        self.records = Records()
        self._apply(schedule)

    @property
    def has_work(self) -> bool:
        """True if any request runs or waits."""
        return self._queues.has_any

    @property
    def wake_at(self) -> float:
        """Seconds; after an empty step, the time at which the next one may have rows.

        Or at which a deadline is over.
        """
        wake_at = self.records.last.wake_at if self.records.last else -inf
        return min(wake_at, self._deadlines.next_at)

    @property
    def max_in_flight(self) -> int:
        """Steps that may be open at once: one a stage, or with one stage the next one as well."""
        return max(2, self._num_stages)

    @property
    def step_prices(self) -> StepPrices:
        """What the model of step times predicts by, as of its last fit."""
        return self._policies.model.prices

    def add(self, request: Request) -> None:
        """Let a request wait for its first step."""
        group: SequenceGroup = group_of(request, number=self._number)
        self._number += len(request.sequences)
        blocks = self._blocks
        sequence = first_sequence(
            group, block_size=blocks.block_size, keeps_keys=blocks.caches_prefixes
        )
        self._queues.expect(sequence)
        self._deadlines.add(request, self._queues.num_known)

    def can_ever_hold(self, request: Request) -> bool:
        """Return True if the KV blocks suffice for a request that runs alone."""
        return self._blocks.can_ever_hold(group_of(request, number=0))

    def abort(self, sequence_id: str) -> bool:
        """Forget a sequence and free its blocks, at any time; return False if it is unknown.

        Beams end together. The one that computes a prompt for others goes on until it is done.
        """
        sequence = self._queues.find(sequence_id)
        if sequence is None:
            return False
        group = sequence.group
        if group.search is not None:
            self._updater.beams.end(group)
        elif sequence.sequence_id != sequence_id:
            self._drop_pending_fork(sequence, sequence_id)
        elif group.pending_forks:
            group.is_orphaned = True
        else:
            self._updater.end(sequence)
        return True

    def expire(self, now: float) -> list[str]:
        """Forget the requests whose deadline is over at `now`, in seconds; return their sequences.

        They may run, wait or be swapped out.
        """
        over = self._deadlines.pop_expired(now)
        for sequence_id in over:
            self.abort(sequence_id)
        return over

    def take_ended(self) -> list[str]:
        """Return the ids of the sequences that have ended, in any way, since the last call."""
        ended = self._queues.take_ended()
        self._drafting.forget(ended)
        return ended

    def drafting(self) -> DraftLimits:
        """Return the drafts that would help sequences in the next step."""
        queues, schedule = self._queues, self._policies.schedule
        mixes = schedule.batching == "splitfuse"
        return self._drafting.limits(
            queues.decoding.values(),
            schedule.split_fuse.split_chunk_tokens if mixes else schedule.max_prefill_tokens,
            has_prompts=bool(queues.prefilling) or bool(len(queues.waiting)),
        )

    def schedule(
        self, now: float, proposals: Proposals = NO_PROPOSALS, *, drafting_s: float = 0.0
    ) -> Step:
        """Decide what the next step computes.

        Args:
            now: Seconds, on the clock of `Request.arrived`.
            proposals: Drafts within the limits of `drafting`.
            drafting_s: Seconds until `now` that proposing them took.
        """
        builder = self._builder(now, proposals=proposals)
        builder.drafting_s = drafting_s
        starved = self._starved(now)
        if starved is not None:
            builder.preemptor.preempt_for_starved(starved)
        self._policies.strategy.fill(builder)
        builder.preemptor.break_deadlock(self._policies.prompt_order)
        return self._open(builder)

    @property
    def can_schedule_async(self) -> bool:
        """True if the next step may be scheduled while the newest one is computed."""
        newest = self.records.newest_open
        if newest is None:
            return False
        if self._num_stages == 1 and not self._policies.schedule.async_scheduling_enable:
            return False
        # Drafts may be refused: how many tokens a row gets is not known then.
        return not newest.record.step.drafts and only_tokens_are_open(newest, self._queues)

    def schedule_async(self, now: float) -> Step | None:
        """Schedule the next step while the newest one is computed, and perhaps others before it.

        Rows of both count on the tokens of the first. Those that end with it otherwise than by
        length are computed once more, and the result is discarded. Steps run one after another, so
        blocks of ended sequences can be given on at once.

        With several pipeline stages no row waits for a token of a step that is computed: the next
        step has other rows, and further chunks of prompts. Each stage computes all steps in their
        order, so blocks can be given on all the same.

        Args:
            now: Seconds.

        Returns:
            None: it has to wait for the newest one (`can_schedule_async`), would preempt, or would
            be empty.
        """
        newest = self.records.newest_open
        if newest is None or not self.can_schedule_async:
            return None
        record = newest.record
        begins = max(now, record.started + (record.predicted_s or 0.0))
        if self._starved(begins) is not None:
            return None
        if not newest.is_reserved:
            self._updater.reserve(record.step, newest.rows)
            newest.is_reserved = True
        if not self._blocks.suffice() or not self._queues.has_next:
            return None
        builder = self._builder(begins, is_async=True)
        self._policies.strategy.fill(builder)
        return None if builder.rows.is_empty else self._open(builder)

    def complete(self, step: Step, result: StepResult, now: float) -> list[Advance]:
        """Take over the result of a step; return the sequences that got tokens.

        Sequences that were aborted while the step ran are skipped, those that failed are
        forgotten.

        Args:
            step: The oldest that is not completed.
            result: The runner's result.
            now: Seconds.
        """
        closed = self.records.close(now)
        if self._num_stages > 1:
            for row in closed.rows:
                row.num_in_flight -= 1
        for sequence_id in self.all_of(result.failed):
            self.abort(sequence_id)
        advances = self._updater.commit(
            step, closed.rows, result, now, is_reserved=closed.is_reserved
        )
        self._policies.learn(closed.record)
        if step.drafts:
            closed.record.num_accepted = self._drafting.learn(closed.record, result)
        return advances

    def all_of(self, failed: Mapping[str, str]) -> dict[str, str]:
        """Return `failed` and the sequences that fail with them: other beams, pending forks.

        Those that have ended before are left out.
        """
        every: dict[str, str] = {}
        for sequence_id, cause in failed.items():
            sequence = self._queues.find(sequence_id)
            if sequence is not None:
                every[sequence_id] = cause
                group = sequence.group
                together = group.request.sequences if group.search else group.pending_forks
                every |= dict.fromkeys(together, cause)
        return every

    def reconfigure(self, schedule: ScheduleConfig, slo: Slo | None = None) -> None:
        """Apply new settings from the next step on; running requests keep their blocks.

        If it raises, the settings before are in force again.
        """
        before = self._policies.schedule, self._policies.slo
        try:
            self._apply_settings(schedule, slo)
        except Exception:
            self._apply_settings(*before)
            raise

    def stats(self) -> EngineStats:
        """Queues and blocks as data."""
        queues, blocks = self._queues, self._blocks
        pools = [rank.pool for rank in blocks.dp_ranks]
        hosts = [rank.host for rank in blocks.dp_ranks]
        return EngineStats(
            num_running=queues.num_running,
            num_waiting=len(queues.waiting),
            num_swapped=len(queues.swapped),
            num_kv_blocks=blocks.num_blocks,
            num_free_kv_blocks=blocks.num_free,
            num_cached_kv_blocks=sum(pool.num_cached for pool in pools),
            num_host_blocks=sum(host.num_blocks for host in hosts),
            num_free_host_blocks=sum(host.num_free for host in hosts),
            num_preemptions=self.records.num_recomputed + self.records.num_swapped,
            num_swaps=self.records.num_swapped,
            num_queried_tokens=blocks.num_queried_tokens,
            num_hit_tokens=blocks.num_hit_tokens,
            num_evicted_blocks=sum(pool.num_evictions for pool in pools),
            drafts=self._drafting.counts_so_far(),
            tpot_pace=self._policies.pace.share if self._policies.slo.tpot else None,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost, or its holders are miscounted.

        Or when a sequence that lacks one is not listed, or a sum is not that of its parts.
        """
        queues, short = self._queues, set(self._blocks.short())
        queues.check_integrity()
        if any(
            sequence.is_short and sequence not in short for sequence in queues.decoding.values()
        ):
            raise AssertionError(
                "A sequence needs a block and is not listed as short; this is a bug."
            )
        self._blocks.check_integrity(queues)

    def _apply_settings(self, schedule: ScheduleConfig, slo: Slo | None) -> None:
        self._policies.reconfigure(schedule, slo)
        self._queues.waiting.reorder(self._policies.prompt_order)
        self._apply(schedule)

    def _apply(self, schedule: ScheduleConfig) -> None:
        self._blocks.switch_prefix_cache(on=schedule.enable_prefix_cache)
        self._blocks.switch_no_evict(on=schedule.no_evict)
        self._updater.pace = self._policies.pace if self._policies.slo.is_given else None
        self._queues.waiting.age_bound_s = self._policies.age_bound_s

    def _builder(
        self, now: float, *, proposals: Proposals = NO_PROPOSALS, is_async: bool = False
    ) -> StepBuilder:
        policies, queues, blocks = self._policies, self._queues, self._blocks
        num_drafting_tokens = self._drafting.take(proposals)
        rows, waits = StepRows(), WaitReasons(queues.waiting)
        preemptor = Preemptor(
            queues=queues,
            blocks=blocks,
            rows=rows,
            waits=waits,
            now=now,
            victims=policies.victims,
            max_swaps=policies.schedule.max_preempt_count,
            is_async=is_async,
        )
        return StepBuilder(
            schedule=policies.schedule,
            queues=queues,
            blocks=blocks,
            now=now,
            limits=policies.limits(queues, blocks),
            proposals={name: draft.token_ids for name, draft in proposals.drafts.items()},
            expected_drafts=self._drafting.expected,
            num_drafting_tokens=num_drafting_tokens,
            num_stages=self._num_stages,
            rows=rows,
            waits=waits,
            preemptor=preemptor,
        )

    def _open(self, builder: StepBuilder) -> Step:
        if self._num_stages > 1:
            for row in builder.rows:
                row.num_in_flight += 1
        load = builder.rows.load()
        return self.records.open(
            builder,
            load,
            predicted_s=self._policies.predict(load),
            has_learnt=self._policies.model.num_fits > 0,
        )

    def _starved(self, now: float) -> Sequence | None:
        """Return a request that found no blocks for maxFirstTokenWaitTime, if there is one."""
        oldest, schedule = self._queues.waiting.oldest, self._policies.schedule
        if oldest is None or not oldest.is_fresh or not self.records.lacked_blocks:
            return None
        late = now - oldest.arrived > schedule.max_first_token_wait_time / 1e3
        return oldest if late and not schedule.no_evict else None

    def _drop_pending_fork(self, first: Sequence, sequence_id: str) -> None:
        first.group.pending_forks = tuple(
            fork for fork in first.group.pending_forks if fork != sequence_id
        )
        self._queues.forget(sequence_id)
        self._queues.stand_for(first, first.rows - 1)
        self._updater.leave(first.group)
        if first.group.is_orphaned and not first.group.pending_forks:
            self._updater.end(first)
