"""What holds for the scheduler and the pool whatever comes: a state machine drives them."""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Step, StepResult
from tandem_engine.engine import Engine, Progress
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.scheduler.sequence import Sequence
from tandem_engine.testing import CountingRunner

BLOCK_SIZE = 16
MAX_SEQ_LEN = 160
MOST_ROWS = 8
LEAST_BLOCKS = MAX_SEQ_LEN // BLOCK_SIZE

schedules = st.builds(
    lambda template, chunk, start, start_type, prefill_tokens, rows, batch: ScheduleConfig(
        template_type=template,
        cache_block_size=BLOCK_SIZE,
        max_prefill_tokens=prefill_tokens,
        max_prefill_batch_size=min(rows, batch),
        max_batch_size=batch,
        split_fuse=SplitFuseConfig(
            split_chunk_tokens=chunk,
            split_start_type=start_type,
            split_start_batch_size=min(start, batch),
        ),
    ),
    st.sampled_from(["Standard", "Mix"]),
    st.sampled_from([16, 32, 64]),
    st.integers(0, 6),
    st.booleans(),
    st.integers(16, 200),
    st.integers(0, 8),
    st.integers(1, MOST_ROWS),
)


def request_of(name: str, num_prompt: int, num_output: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=tuple(range(num_prompt)),
        sampling=SamplingParams(max_tokens=num_output),
        max_new_tokens=num_output,
    )


class InterruptedRunner(CountingRunner):
    """Aborts `victim` while the step runs, as a client that leaves at the worst moment would."""

    engine: Engine
    victim: str | None = None

    def run(self, step: Step) -> StepResult:
        result = super().run(step)
        if self.victim is not None:
            self.engine.abort(self.victim)
            self.victim = None
        return result


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, run, are aborted and re-configured in any order; blocks are scarce."""

    requests = Bundle("requests")

    @initialize(schedule=schedules, spare_blocks=st.integers(0, 10))
    def start(self, schedule: ScheduleConfig, spare_blocks: int) -> None:
        self.schedule = schedule
        self.pool = BlockPool(LEAST_BLOCKS + spare_blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(schedule, self.pool)
        self.runner = InterruptedRunner(block_size=BLOCK_SIZE)
        self.engine = self.runner.engine = Engine(self.scheduler, self.runner)
        self.wanted: dict[str, int] = {}
        self.got: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.skipped: dict[str, int] = {}
        self.count = 0

    @rule(target=requests, num_prompt=st.integers(1, 120), num_output=st.integers(1, 40))
    def add(self, num_prompt: int, num_output: int) -> str:
        name = f"r{self.count}"
        self.count += 1
        self.engine.add(request_of(name, num_prompt, num_output))
        self.wanted[name] = num_output
        self.got[name] = []
        return name

    @rule(request=consumes(requests))
    def abort(self, request: str) -> None:
        self.engine.abort(request)
        self.wanted.pop(request)

    @rule(schedule=schedules)
    def reconfigure(self, schedule: ScheduleConfig) -> None:
        self.schedule = schedule
        self.engine.reconfigure(schedule)

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.one_step()

    @rule(request=consumes(requests))
    def abort_while_a_step_runs(self, request: str) -> None:
        self.runner.victim = request
        self.one_step()
        self.wanted.pop(request)

    @invariant()
    def every_block_is_free_or_held_once(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    def one_step(self) -> Progress:
        running = self.scheduler._queues.running
        before = {row.request_id: dataclasses.replace(row) for row in running}
        progress = self.engine.step()
        self.check_limits(progress.step, before)
        self.check_decodes(progress.step, before)
        for advance in progress.advances:
            self.got[advance.request_id].append(advance.token.token_id)
            if advance.finish_reason is not None:
                self.finished.add(advance.request_id)
        assert not progress.failed
        return progress

    def check_limits(self, step: Step, before: dict[str, Sequence]) -> None:
        chunk = self.schedule.split_fuse.split_chunk_tokens
        assert len(step.num_tokens) <= self.schedule.max_batch_size
        if self.schedule.is_split_fuse and self.schedule.split_fuse.split_start_batch_size == 0:
            assert step.total_tokens <= chunk
        if self.schedule.is_split_fuse:
            decodes = sum(name in before and before[name].is_decoding for name in step.num_tokens)
            assert step.total_tokens <= max(chunk, self.schedule.max_prefill_tokens + decodes)
        elif any(name not in before for name in step.num_tokens):
            fits = step.total_tokens <= self.schedule.max_prefill_tokens
            assert fits or len(step.num_tokens) == 1 or any(n in before for n in step.num_tokens)

    def check_decodes(self, step: Step, before: dict[str, Sequence]) -> None:
        decoding = [
            name for name, row in before.items() if row.is_decoding and name not in step.preempted
        ]
        if not self.schedule.is_split_fuse and any(
            name not in decoding for name in step.num_tokens
        ):
            return  # a prefill step of the Standard template
        limit = self.schedule.max_batch_size
        if self.schedule.is_split_fuse:
            limit = min(limit, self.schedule.split_fuse.split_chunk_tokens)
        taken = list(step.num_tokens)[: min(limit, len(decoding))]
        assert set(taken) <= set(decoding), "decodes come first"
        assert len(taken) == min(limit, len(decoding)), "none is skipped while it fits"
        self.check_turns(decoding, taken)

    def check_turns(self, decoding: list[str], taken: list[str]) -> None:
        """Where a limit was lowered below what runs, nobody waits for ever."""
        for name in decoding:
            self.skipped[name] = 0 if name in taken else self.skipped.get(name, 0) + 1
            assert self.skipped[name] <= 2 * MOST_ROWS

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(20_000):
            if not self.engine.has_work:
                break
            progress = self.one_step()
            assert progress.step.num_tokens, "there is work, but the step is empty"
        assert not self.engine.has_work
        assert self.pool.num_free == self.pool.num_blocks
        for name, num_output in self.wanted.items():
            assert self.got[name] == list(range(num_output))


SchedulerMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=25, deadline=None
)
TestScheduler = SchedulerMachine.TestCase
