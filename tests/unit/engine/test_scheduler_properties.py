"""Invariants of scheduler and pool under any load: a state machine drives them."""

from collections import Counter
from dataclasses import replace
from math import inf, isfinite
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    rule,
)

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import Request
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.api.step import Step
from tandem_engine.engine import Progress
from tandem_engine.scheduler.sequence import State
from tandem_engine.scheduler.step_builder import SKIPPING_REASONS
from tests.unit.engine.moody_runner import MoodyRunner
from tests.unit.engine.scheduling import (
    BLOCK_SIZE,
    Bench,
    check_dp_ranks,
    request,
    standard,
    tokens,
)

MOST_ROWS = 8
LONGEST_PROMPT = 100
LONGEST_OUTPUT = 24


@st.composite
def schedules(draw: st.DrawFn) -> ScheduleConfig:
    """Every parameter that the scheduler reads, within what the configuration allows."""
    batching = draw(
        st.sampled_from(["splitfuse", "splitfuse", "continuous", "chunked", "static", "dynamic"])
    )
    is_mix = batching == "splitfuse"
    batch = draw(st.integers(1, MOST_ROWS))
    prefill_tokens = draw(st.integers(8, 200))
    policy: Any = draw(st.sampled_from([0, 4, 5, 6, 7])) if is_mix else 0
    types = st.just(0) if policy else st.integers(0, 3)
    partials = draw(st.integers(1, 6))
    given: dict[str, Any] = {
        "strategy": batching,
        "template_type": "Mix" if is_mix else "Standard",
        "max_batch_size": batch,
        "max_prefill_batch_size": draw(st.integers(0, batch)),
        "max_prefill_tokens": prefill_tokens,
        "max_preempt_count": draw(st.integers(0, batch)),
        "prefill_policy_type": draw(types),
        "decode_policy_type": draw(types),
        "max_queue_delay_microseconds": draw(st.sampled_from([500, 5000, 1_000_000])),
        "max_first_token_wait_time": draw(st.sampled_from([0, 100, 2500])),
        "prefill_expected_time": draw(st.sampled_from([1, 1500])),
        "enable_prefix_cache": draw(st.booleans()),
        "no_evict": draw(st.booleans()),
        "async_scheduling_enable": draw(st.booleans()),
        "stage_select_policy": draw(st.integers(0, 2)) if batching == "continuous" else 0,
        "dynamic_batch_size_enable": not is_mix and draw(st.booleans()),
        "split_fuse": SplitFuseConfig(
            split_chunk_tokens=draw(st.sampled_from([16, 32, 64])),
            split_type=draw(st.booleans()),
            split_start_type=draw(st.booleans()),
            split_start_batch_size=draw(st.integers(0, batch)),
            policy_type=policy,
            prefill_chunk_size=draw(st.none() | st.integers(0, prefill_tokens)),
            max_num_partial_prefills=partials,
            long_prefill_token_threshold=draw(st.sampled_from([8, 40, 1024])),
            max_long_partial_prefills=draw(st.integers(1, partials)),
        ),
    }
    return standard(**given)


def latency(target: str) -> LatencyTarget:
    return LatencyTarget(target=target)


slos = st.sampled_from(
    [
        Slo(),
        Slo(),
        Slo(ttft=latency("2s")),
        Slo(tpot=latency("50ms")),
        Slo(ttft=latency("500ms"), tpot=latency("1ms")),
    ]
)
prompts = st.tuples(st.sampled_from("abc"), st.integers(1, LONGEST_PROMPT))


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, run, fail, leave, and are re-configured in any order; blocks are scarce."""

    sequences = Bundle("sequences")

    @initialize(
        schedule=schedules(),
        slo=slos,
        num_blocks=st.integers(8, 24),
        num_host_blocks=st.sampled_from([0, 3, 16]),
        max_drafts=st.sampled_from([0, 0, 3]),
        right_drafts=st.lists(st.booleans(), min_size=1, max_size=4),
        dp=st.sampled_from([1, 1, 2, 3]),
        num_stages=st.sampled_from([1, 1, 2, 4]),
    )
    def begin(
        self,
        schedule: ScheduleConfig,
        slo: Slo,
        num_blocks: int,
        num_host_blocks: int,
        max_drafts: int,
        right_drafts: list[bool],
        dp: int,
        num_stages: int,
    ) -> None:
        self.schedule = schedule
        self.slo = slo
        self.max_drafts = max_drafts
        self.num_stages = num_stages
        self.runner = self.make_runner(right_drafts)
        self.bench = self.runner.bench = Bench(
            schedule,
            num_blocks=num_blocks,
            num_host_blocks=num_host_blocks,
            max_drafts=max_drafts,
            num_stages=num_stages,
            slo=slo,
            runner=self.runner,
            dp=dp,
        )
        self.requests: dict[str, Request] = {}
        self.request_of: dict[str, Request] = {}
        self.numbers: dict[str, int] = {}
        self.gone: set[str] = set()
        """Sequences that were aborted or failed."""
        self.served: set[str] = set()
        """Requests that were in a step."""
        self.never_evicts = schedule.no_evict
        self.most_rows = schedule.max_batch_size
        """Bound of the rows of a step, also of one in flight that an earlier schedule bounds."""

    def make_runner(self, right_drafts: list[bool]) -> MoodyRunner:
        """Return the runner whose steps are scheduled."""
        return MoodyRunner(block_size=BLOCK_SIZE, right_drafts=right_drafts)

    @rule(
        target=sequences,
        prompt=prompts,
        num_output=st.integers(1, LONGEST_OUTPUT),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        is_beams=st.booleans(),
        priority=st.integers(1, 5),
        salt=st.sampled_from(["", "", "pepper"]),
        ago=st.sampled_from([0.0, 0.0, 0.125, 4.0]),
        ends_at=st.sampled_from([None, None, 0, 5]),
        lives_s=st.sampled_from([inf, inf, inf, 0.0, 0.2, 1.0, 3.0]),
    )
    def add(
        self,
        prompt: tuple[str, int],
        num_output: int,
        n: int,
        is_beams: bool,
        priority: int,
        salt: str,
        ago: float,
        ends_at: int | None,
        lives_s: float,
    ) -> str:
        number = len(self.requests)
        name = f"r{number}-"
        expected = request(
            name,
            0,
            num_output,
            prompt=tokens(*prompt),
            arrived=self.bench.now - ago,
            priority=priority,
            salt=salt,
            n=n,
            use_beam_search=is_beams and n > 1,
            stop_token_ids=() if ends_at is None or is_beams else (ends_at,),
        )
        expected = replace(expected, deadline=self.bench.now + lives_s)
        if n > self.schedule.max_batch_size or not self.bench.engine.can_ever_hold(expected):
            return ""  # AsyncEngine refuses it
        self.requests[name] = expected
        self.numbers[name] = number
        for each in expected.sequences:
            self.request_of[each] = expected
        self.bench.add(expected)
        return expected.sequences[-1] if number % 2 else expected.sequences[0]

    @rule(sequence=consumes(sequences))
    def abort(self, sequence: str) -> None:
        self.bench.engine.abort(sequence)
        self.lose(sequence)
        self.bench.scheduler.check_integrity()

    @rule(sequence=consumes(sequences), seconds=st.sampled_from([0.01, 0.5]))
    def leave_while_a_step_runs(self, sequence: str, seconds: float) -> None:
        self.runner.leaves = sequence or None
        self.one_step(seconds)
        self.lose(sequence)

    @rule(row=st.integers(1, MOST_ROWS))
    def fail_a_row(self, row: int) -> None:
        self.runner.fails = row
        self.one_step(0.25)

    @rule()
    def break_a_step(self) -> None:
        self.runner.raises = True
        self.one_step(0.25)

    @rule()
    def break_a_step_behind_its_copies(self) -> None:
        self.runner.loses_rows = True
        self.one_step(0.25)

    @rule(schedule=schedules(), slo=slos | st.none())
    def reconfigure(self, schedule: ScheduleConfig, slo: Slo | None) -> None:
        self.never_evicts = self.never_evicts and schedule.no_evict
        self.most_rows = max(self.most_rows, schedule.max_batch_size)
        self.schedule = schedule
        self.slo = slo or self.slo
        self.bench.engine.reconfigure(schedule, slo)
        self.bench.scheduler.check_integrity()

    @rule(times=st.integers(1, 12), seconds=st.sampled_from([0.001, 0.05, 1.0]))
    def step(self, times: int, seconds: float) -> None:
        for _ in range(times):
            self.one_step(seconds)

    def lose(self, sequence: str) -> None:
        if not sequence:
            return
        expected = self.request_of[sequence]
        lost = expected.sequences if expected.sampling.use_beam_search else (sequence,)
        self.gone.update(lost)

    def one_step(self, seconds: float) -> Progress:
        scheduler = self.bench.scheduler
        before = {
            each: one.state
            for each in self.request_of
            if (one := scheduler._queues.find(each)) is not None and one.sequence_id == each
        }
        num_rows = scheduler._queues.num_rows
        started, overdue = self.bench.now, self.overdue()
        was_async = bool(self.bench.engine._launched)
        if not was_async:
            self.most_rows = self.schedule.max_batch_size
        progress = self.bench.step(seconds)
        step = progress.step
        self.gone.update(progress.failed)
        self.gone.update(progress.expired)
        self.check_deadlines(progress, started)
        assert not any("AssertionError" in cause for cause in progress.failed.values())
        self.check_rows(step, num_rows)
        check_dp_ranks(self.bench, step, self.request_of)
        self.check_decodes(step)
        # What is known of before the call says nothing of steps that were made in another one.
        if not was_async:
            self.check_budget(step, before)
        if not was_async and not self.bench.engine._launched:
            self.check_order(step, started)
            self.check_age(step, before, overdue)
        self.served.update(self.request_of[each].request_id for each in step.sequence_ids)
        if not step.sequence_ids and self.bench.engine.has_work:
            wake_at = self.bench.engine.wake_at
            assert isfinite(wake_at), f"nothing would ever wake the loop: {self.bench.record}"
            self.bench.now = max(self.bench.now, wake_at)
        return progress

    def check_deadlines(self, progress: Progress, now: float) -> None:
        """A late sequence is reported once, by the next step, and in no step after it."""
        expired = progress.expired
        assert len(set(expired)) == len(expired)
        assert all(self.request_of[each].deadline <= now for each in expired)
        assert not progress.failed.keys() & set(expired)
        assert not {advance.sequence_id for advance in progress.advances} & set(expired)
        late = {each for each, one in self.request_of.items() if one.deadline <= now}
        assert not any(self.bench.scheduler._queues.find(each) for each in late)
        # A step that was made in an earlier call may have some.
        if self.num_stages == 1:
            assert not any(late & set(one.step.sequence_ids) for one in self.bench.engine._launched)

    def check_rows(self, step: Step, num_rows: int) -> None:
        most = self.schedule.max_batch_size
        requests = {self.request_of[each].request_id for each in step.sequence_ids}
        assert len(step.sequence_ids) <= self.most_rows or len(requests) == 1
        running = self.bench.scheduler._queues.num_rows
        assert (
            running <= max(most, num_rows)
            or len(
                {
                    self.request_of[one.sequence_id].request_id
                    for one in self.bench.scheduler._queues.running()
                }
            )
            == 1
        )

    def check_budget(self, step: Step, before: dict[str, State]) -> None:
        schedule, most = self.schedule, self.schedule.max_prefill_tokens
        prompt_tokens = sum(step.num_tokens[step.num_decodes :])
        prompts = step.sequence_ids[step.num_decodes :]
        if schedule.is_split_fuse:
            chunk = schedule.split_fuse.split_chunk_tokens
            assert sum(step.num_tokens[: step.num_decodes]) <= chunk or (
                len({self.request_of[each].request_id for each in step.sequence_ids}) == 1
            )
            split = schedule.split_fuse
            cuts_all = self.slo.tpot is not None or (
                not split.split_start_batch_size and not split.split_type
            )
            assert (
                step.total_tokens <= chunk
                or (not cuts_all and prompt_tokens <= most)
                or not prompts
            )
        elif schedule.batching == "chunked":
            assert prompt_tokens <= most
        elif all(before.get(each) == State.WAITING for each in prompts):
            assert prompt_tokens <= most or len(prompts) == 1
        if not schedule.is_split_fuse and prompts:
            # what decodes in a step of prompts has just been admitted with one token to compute
            decodes = step.sequence_ids[: step.num_decodes]
            assert all(before.get(each) == State.WAITING for each in decodes)

    def check_decodes(self, step: Step) -> None:
        """Drafts are at most what is asked for, and never reach beyond the last token."""
        for each, drafts in step.drafts.items():
            assert 1 <= len(drafts) <= self.max_drafts
            expected = self.request_of[each]
            start = step.starts[step.sequence_ids.index(each)]
            assert (
                start + 1 + len(drafts) < len(expected.prompt_token_ids) + expected.max_new_tokens
            )

    def check_order(self, step: Step, now: float) -> None:
        """A sequence that starts for the first time goes before all fresh ones that still wait."""
        record = self.bench.record
        skipped = {each for each, reason in record.skipped if reason in SKIPPING_REASONS}
        started = [
            expected
            for each in step.sequence_ids
            if (expected := self.request_of[each]).request_id not in self.served
        ]
        waits = [
            expected
            for expected in self.requests.values()
            if expected.request_id not in self.served
            and expected not in started
            and self.bench.scheduler._queues.find(expected.sequences[0]) is not None
            and not any(each in skipped for each in expected.sequences)
        ]
        if not started or not waits or self.by_laxity:
            return
        # Who has waited for longer than the age bound may go before all others.
        in_turn = [one for one in started if not (self.ages and now - one.arrived > self.bound_s)]
        first_waiting = min(map(self.rank, waits))
        assert all(self.rank(one) < first_waiting for one in in_turn)

    def check_age(self, step: Step, before: dict[str, State], overdue: str | None) -> None:
        """None starts before one that has waited for longer than the age bound."""
        one = None if overdue is None else self.bench.scheduler._queues.find(overdue)
        if one is None or one.state != State.WAITING:
            return
        if overdue not in {each for each, _ in self.bench.record.skipped}:
            assert not any(before.get(each) == State.WAITING for each in step.sequence_ids)

    def overdue(self) -> str | None:
        """The oldest that waits, if it has done so for longer than the age bound."""
        waiting = [queue for queue in self.bench.scheduler._queues if queue.state == State.WAITING]
        # By laxity those that miss their target go first now and then alone.
        if not waiting or not self.ages or self.by_laxity:
            return None
        oldest = min(waiting, key=lambda one: (one.arrived, one.number))
        late = self.bench.now - oldest.arrived > self.bound_s
        return oldest.sequence_id if late else None

    @property
    def by_laxity(self) -> bool:
        """True when a TTFT target orders the prompts."""
        schedule = self.schedule
        has_policy = schedule.split_fuse.policy_type or schedule.prefill_policy_type
        return schedule.is_split_fuse and self.slo.ttft is not None and not has_policy

    @property
    def ages(self) -> bool:
        """True if the order could pass one over for ever, but for the age bound."""
        by_level = self.schedule.split_fuse.policy_type in {6, 7}
        return by_level or self.schedule.prefill_policy_type == 3 or self.by_laxity

    @property
    def bound_s(self) -> float:
        return 4 * (self.slo.ttft_s or self.schedule.prefill_expected_time / 1e3)

    def rank(self, expected: Request) -> tuple[float, ...]:
        arrival = (expected.arrived, self.numbers[expected.request_id])
        length = float(len(expected.prompt_token_ids))
        policy = self.schedule.split_fuse.policy_type
        if policy in {4, 7}:
            return (length, *arrival)
        if policy == 5:
            return (-length, *arrival)
        if self.schedule.prefill_policy_type == 2:
            return (expected.priority, *arrival)
        return arrival

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for _ in range(5000):
            if not self.bench.engine.has_work:
                break
            self.one_step(0.05)
        assert not self.bench.engine.has_work, f"without end: {self.bench.record}"
        assert self.bench.is_empty
        assert self.runner.removed == Counter(list(self.request_of)), "each id is told once"
        for each, expected in self.request_of.items():
            if each not in self.gone:
                self.check_output(each, expected)
        if self.never_evicts:
            assert not self.bench.engine.stats().num_preemptions

    def check_output(self, sequence: str, expected: Request) -> None:
        said = self.bench.said[sequence]
        if not expected.sampling.use_beam_search:
            ends = [end + 1 for end in expected.stop_token_ids]
            assert said == list(range(min([expected.max_new_tokens, *ends])))
            return
        # Its steps take as long as they take, and none waits for them.
        alone = Bench(standard(), replace(expected, deadline=inf), num_blocks=200)
        alone.finish()
        assert said == alone.said[sequence]


SchedulerMachine.TestCase.settings = settings(stateful_step_count=25)
TestScheduler = SchedulerMachine.TestCase
