"""The scheduler: schedule a step, complete it, and let requests come and go in between.

Pure: no tensor, no clock, no chance. The same calls at the same times give the same steps.
"""

from collections.abc import Mapping
from collections.abc import Sequence as List
from math import inf

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.output import EngineStats
from tandem_engine.api.request import Request
from tandem_engine.api.slo import Slo
from tandem_engine.api.step import Advance, SampledToken, Step, StepResult
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.blocks import Blocks
from tandem_engine.scheduler.group import Group, group_of
from tandem_engine.scheduler.lockstep import Lockstep
from tandem_engine.scheduler.policies import Policies
from tandem_engine.scheduler.queues import Queues
from tandem_engine.scheduler.records import Records
from tandem_engine.scheduler.round import Round
from tandem_engine.scheduler.sequence import RUNNING, Sequence, first_sequence


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
        self._lockstep = Lockstep(self._queues, self._blocks)
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
            self._lockstep.end(group)
        elif sequence.sequence_id != sequence_id:
            self._drop_unborn(sequence, sequence_id)
        elif group.unborn:
            group.is_orphaned = True
        else:
            self._end(sequence)
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
        return self.records.open(step, predicted_s=policies.predict(step))

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
        advances: list[Advance] = []
        for sequence_id in self.all_of(result.failed):
            self.abort(sequence_id)
        yielded = result.tokens.get
        for sequence, num_tokens in zip(rows, step.num_tokens, strict=True):
            if sequence.state is not RUNNING:
                continue
            self._book(sequence, num_tokens)
            if sequence.group.is_plain:
                tokens = yielded(sequence.sequence_id)
                if tokens is not None:
                    advances.append(self._append(sequence, tokens, now))
            else:
                advances += self._advance_group(sequence, result, now)
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
            tpot_pace=self._policies.pace.share if self._keeps_pace else None,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost, or held by another number than holds it."""
        tables = [sequence.table for sequence in self._queues]
        self._blocks.pool.check_integrity(tables)
        self._blocks.host.check_integrity()

    def _apply(self, schedule: ScheduleConfig) -> None:
        self._blocks.switch_prefix_cache(on=schedule.enable_prefix_cache)
        self._blocks.no_evict = schedule.no_evict
        self._keeps_pace = self._policies.slo.tpot is not None
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

    def _book(self, sequence: Sequence, num_tokens: int) -> None:
        """Note that tokens are computed. Drafts count once it is known which were right."""
        sequence.num_attained += num_tokens
        computed = min(sequence.num_computed + num_tokens, sequence.num_tokens)
        sequence.num_computed = computed
        if computed >= sequence.next_seal:
            self._blocks.seal(sequence)
        if sequence.is_prefilling and sequence.num_tokens - computed == 1:
            self._queues.decode(sequence)

    def _advance_group(self, sequence: Sequence, result: StepResult, now: float) -> list[Advance]:
        """Hand a sequence, and those that move with it or wait for its prompt, their tokens."""
        if sequence.group.search is not None:
            return self._lockstep.advance(sequence, result)
        tokens = result.tokens.get(sequence.sequence_id)
        if tokens is None:
            return []
        born = self._born(sequence)
        advances = [self._append(child, result.tokens[child.sequence_id], now) for child in born]
        if not sequence.group.is_orphaned:
            return [self._append(sequence, tokens, now), *advances]
        self._end(sequence)
        return advances

    def _born(self, first: Sequence) -> list[Sequence]:
        """The other choices of a request: they share the prompt that the first has computed."""
        group = first.group
        children = [self._blocks.fork(first, sequence_id) for sequence_id in group.unborn]
        self._queues.stand_for(first, 1)
        group.unborn = []
        group.is_plain = True
        for child in children:
            self._queues.join(child)
        return children

    def _append(self, sequence: Sequence, tokens: List[SampledToken], now: float) -> Advance:
        """Note the tokens that a sequence yielded."""
        if len(tokens) == 1:
            reason = sequence.append(tokens[0].token_id)
        else:
            reason, tokens = sequence.append_all(tokens)
        if self._keeps_pace:
            self._note_pace(sequence, now, has_ended=reason is not None)
        if reason is not None:
            self._end(sequence)
            return Advance(sequence.sequence_id, tokens, reason)
        # All but the newest are in the cache: they are the drafts that were right.
        sequence.num_computed = sequence.num_tokens - 1
        if self._most_drafts:
            self._blocks.trim(sequence)
        if sequence.is_prefilling:
            self._queues.decode(sequence)
        return Advance(sequence.sequence_id, tokens)

    def _note_pace(self, sequence: Sequence, now: float, *, has_ended: bool) -> None:
        """Note when the first token came, and what the promises came to."""
        if sequence.first_token_at == inf:
            sequence.first_token_at = now
            self._policies.pace.note_first_token(now - sequence.arrived)
        elif has_ended:
            num_gaps = sequence.num_output - 1
            self._policies.pace.note_end((now - sequence.first_token_at) / num_gaps)

    def _drop_unborn(self, first: Sequence, sequence_id: str) -> None:
        first.group.unborn.remove(sequence_id)
        self._queues.forget(sequence_id)
        self._queues.stand_for(first, first.rows - 1)
        self._leave(first.group)
        if first.group.is_orphaned and not first.group.unborn:
            self._end(first)

    def _end(self, sequence: Sequence) -> None:
        self._queues.end(sequence)
        self._blocks.drop(sequence)
        self._leave(sequence.group)

    def _leave(self, group: Group) -> None:
        group.num_left -= 1
        if not group.num_left and group.is_admitted:
            self._blocks.leave(group)
