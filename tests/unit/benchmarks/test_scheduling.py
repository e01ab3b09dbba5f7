"""The comparison of policies: loads, machines, capacity, the simulator."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduling.capacity import Run, figures, highest_sustained
from benchmarks.scheduling.comparison import (
    PolicyComparison,
    PolicyResult,
    find_capacity,
    group_by_load,
    tasks_for,
)
from benchmarks.scheduling.machines import find_machine
from benchmarks.scheduling.policies import Policy, parse_targets, policies_for, static, with_slo
from benchmarks.scheduling.workload import at_rate, span_s, window, with_poisson_arrivals
from benchmarks.serving.errors import WrongUsage
from benchmarks.serving.outcome import Outcome
from benchmarks.serving.settings import LatencyTargets
from tandem_engine.api.step import Step
from tandem_engine.simulate.machines import MACHINES, Machine, Noise, NoisyMachine
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.simulator import MissLimit, Simulator
from tandem_engine.simulate.workload import Arrival, Shape

TARGETS = LatencyTargets(ttft_ms=1000.0, tpot_ms=100.0)
QUIET = Noise(spread=0.0, outliers=0.0)

# 10 ms a step, 1 ms a token, 2 µs a pair, 3 µs a cached token, 4 ms a row.
PLAIN = Machine(
    base_s=10e-3,
    token_s=1e-3,
    attention_s=2e-6,
    cache_s=3e-6,
    row_s=4e-3,
    num_blocks=100,
    max_seq_len=4096,
    source="this test",
)


def load(*shapes: tuple[float, int, int]) -> list[Arrival]:
    return [Arrival(due_s, Shape(num_input, num_output)) for due_s, num_input, num_output in shapes]


def run_of(rate: float, *, sustained: bool, goodput: float | None = None) -> Run:
    return Run(
        rate=rate,
        goodput=rate if goodput is None else goodput,
        sustained=sustained,
        ttft_ms=None,
        tpot_ms=None,
        output_tokens_per_s=0.0,
        total_tokens_per_s=0.0,
        num_requests=1,
    )


def outcome(ttft_s: float, tpot_s: float) -> Outcome:
    first, last = 5.0 + ttft_s, 5.0 + ttft_s + 10 * tpot_s
    return Outcome(shape=Shape(100, 11), due_s=5.0, end_s=last, event_times_s=(first, last))


# ── loads ────────────────────────────────────────────────────────────────────────────────────


@given(st.floats(0.01, 100.0))
def test_a_load_has_the_requested_rate(rate: float) -> None:
    base = load((0.0, 10, 10), (3.0, 20, 20), (4.0, 30, 30), (10.0, 40, 40))
    stretched = at_rate(base, rate)

    assert len(stretched) / span_s(stretched) == pytest.approx(rate)
    assert [one.shape for one in stretched] == [one.shape for one in base]
    gaps = [later.due_s - earlier.due_s for earlier, later in pairwise(stretched)]
    assert gaps[2] == pytest.approx(2 * gaps[0])


def test_a_load_without_a_span_has_no_rate() -> None:
    with pytest.raises(WrongUsage, match="2 requests within 0 s has no rate"):
        at_rate(load((0.0, 1, 1), (0.0, 1, 1)), 1.0)


def test_a_window_begins_at_zero_and_keeps_its_gaps() -> None:
    trace = load((0.0, 1, 1), (5.0, 2, 2), (6.5, 3, 3), (9.0, 4, 4))

    assert window(trace, first=1, count=2) == load((0.0, 2, 2), (1.5, 3, 3))


def test_a_window_beyond_the_trace_is_refused() -> None:
    with pytest.raises(WrongUsage, match="2 requests, not the 3 from number 0 on; lower"):
        window(load((0.0, 1, 1), (1.0, 1, 1)), first=0, count=3)


def test_chance_draws_whole_rows_and_is_the_same_for_the_same_seed() -> None:
    trace = load((0.0, 10, 1), (1.0, 20, 2), (2.0, 30, 3))
    drawn = with_poisson_arrivals(trace, count=50, seed=3)

    assert {one.shape for one in drawn} == {one.shape for one in trace}
    assert drawn == with_poisson_arrivals(trace, count=50, seed=3)
    assert drawn != with_poisson_arrivals(trace, count=50, seed=4)


# ── machines ─────────────────────────────────────────────────────────────────────────────────

# Two decode rows with 100 and 200 cached tokens, a chunk of 10 that starts at 50:
# pairs 10 · (50 + 5) = 550.
MIXED = Step(
    sequence_ids=["a", "b", "c"],
    num_tokens=[1, 1, 10],
    starts=[100, 200, 50],
    block_tables=[[], [], []],
    num_decodes=2,
)


def test_the_time_of_a_step_by_hand() -> None:
    # 10 + 12 · 1 + 550 · 0.002 + 300 · 0.003 + 3 · 4 ms.
    assert PLAIN.seconds(MIXED) == pytest.approx(36e-3)


def test_below_the_price_of_the_weights_tokens_are_free() -> None:
    roof = Machine(
        base_s=0.0,
        weights_s=20e-3,
        token_s=1e-3,
        attention_s=0.0,
        cache_s=0.0,
        row_s=0.0,
        num_blocks=1,
        max_seq_len=16,
        source="this test",
    )
    more = Step(sequence_ids=["a"], num_tokens=[30], starts=[0], block_tables=[[]])

    assert roof.seconds(MIXED) == pytest.approx(20e-3)
    assert roof.seconds(more) == pytest.approx(30e-3)


def test_without_noise_a_machine_is_exact_and_with_it_two_seeds_differ() -> None:
    exact = NoisyMachine(PLAIN, QUIET, Random(1))
    first, second = (NoisyMachine(PLAIN, Noise(), Random(seed)) for seed in (1, 2))

    assert exact.seconds(MIXED) == pytest.approx(PLAIN.seconds(MIXED))
    assert first.seconds(MIXED) != second.seconds(MIXED)


def test_an_outlier_takes_as_much_longer_as_the_noise_says() -> None:
    slow = NoisyMachine(PLAIN, Noise(spread=0.0, outliers=1.0, slowdown=4.0), Random(1))

    assert slow.seconds(MIXED) == pytest.approx(4 * PLAIN.seconds(MIXED))


def test_an_unknown_machine_is_refused_with_the_names() -> None:
    with pytest.raises(WrongUsage, match="'tpu'; it must be one of npu, gpu, cpu"):
        find_machine("tpu")


# ── policies ─────────────────────────────────────────────────────────────────────────────────


def test_six_static_chunks_compete_with_one_budget() -> None:
    names = [policy.name for policy in policies_for(TARGETS)]

    assert names == [f"static {2**power}" for power in range(6, 12)] + ["SLO budget"]


def test_a_static_chunk_knows_no_target_and_the_budget_both() -> None:
    assert static(256).is_static
    assert static(256).schedule.split_fuse.split_chunk_tokens == 256
    assert not with_slo(TARGETS).is_static
    assert (with_slo(TARGETS).slo.ttft_s, with_slo(TARGETS).slo.tpot_s) == (1.0, 0.1)
    assert with_slo(TARGETS).schedule.split_fuse.split_chunk_tokens == 2048


def test_targets_are_written_with_a_slash() -> None:
    assert parse_targets("1500/62.5") == LatencyTargets(ttft_ms=1500.0, tpot_ms=62.5)


@pytest.mark.parametrize("text", ["1500", "a/b", "1500/", "/50"])
def test_what_is_no_pair_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(WrongUsage, match=f"'{text}' is not a pair of targets; .* such as 1500/50"):
        parse_targets(text)


# ── figures ──────────────────────────────────────────────────────────────────────────────────


def test_goodput_counts_those_that_kept_both_targets() -> None:
    good, late, slow = outcome(0.5, 0.05), outcome(1.5, 0.05), outcome(0.5, 0.15)
    seen = figures([good, good, late, slow], TARGETS, rate=8.0, wall_s=1.0)

    assert seen.goodput == 4.0
    assert not seen.sustained


def test_a_tenth_may_miss_a_target() -> None:
    good, late, slow = outcome(0.5, 0.05), outcome(1.5, 0.05), outcome(0.5, 0.15)

    assert figures([good] * 18 + [late, slow], TARGETS, rate=1.0, wall_s=1.0).sustained
    assert not figures([good] * 17 + [late, late, slow], TARGETS, rate=1.0, wall_s=1.0).sustained


def test_requests_that_never_ended_missed_their_targets() -> None:
    seen = figures([outcome(0.5, 0.05)] * 8, TARGETS, rate=10.0, wall_s=1.0, num_requests=10)

    assert not seen.sustained
    assert seen.goodput == 8.0


# ── the highest load ─────────────────────────────────────────────────────────────────────────


@given(st.floats(0.02, 200.0), st.floats(0.5, 4.0), st.floats(0.01, 0.2))
def test_the_highest_load_is_found_to_the_precision(
    limit: float, start: float, precision: float
) -> None:
    tried: list[float] = []

    def run(rate: float) -> Run:
        tried.append(rate)
        return run_of(rate, sustained=rate <= limit)

    best = highest_sustained(run, start=start, precision=precision)

    assert best is not None
    assert best.rate <= limit <= best.rate * (1.0 + precision) * (1.0 + 1e-9)
    assert len(tried) < 40


def test_a_run_that_was_broken_off_is_too_much() -> None:
    best = highest_sustained(
        lambda rate: None if rate > 3.0 else run_of(rate, sustained=True), start=1.0
    )

    assert best is not None
    assert best.rate == pytest.approx(3.0, rel=0.02)


def test_no_rate_is_tried_at_which_a_load_is_over_too_soon() -> None:
    tried: list[float] = []

    def run(rate: float) -> Run:
        tried.append(rate)
        return run_of(rate, sustained=True)

    best = highest_sustained(run, start=1.0, precision=0.02, most=5.0)

    assert max(tried) < 5.0
    assert best is not None
    assert best.rate == pytest.approx(5.0, rel=0.02)


def test_nothing_is_found_where_nothing_is_sustained() -> None:
    assert highest_sustained(lambda rate: run_of(rate, sustained=False), start=1.0) is None


# ── the simulator ────────────────────────────────────────────────────────────────────────────


def simulator(limit: MissLimit | None = None) -> Simulator:
    machine = NoisyMachine(PLAIN, QUIET, Random(0))
    return Simulator(replica(static(64), machine), limit)


def replica(policy: Policy, machine: NoisyMachine) -> SchedulerReplica:
    return SchedulerReplica(policy.schedule, policy.slo, machine, num_blocks=PLAIN.num_blocks)


def test_one_request_alone_takes_what_its_steps_cost() -> None:
    requests = load((2.0, 100, 3))
    seen = simulator().run(requests)

    # Chunks of 64 and 36: 10 + 64 + 64 · 32 · 0.002 + 4 = 82.096 ms; 10 + 36 + 36 · (64 + 18)
    # · 0.002 + 4 = 55.904 ms. Two decode steps: 10 + 1 + 100 · 0.003 + 4 = 15.3, and 15.303 ms.
    (one,) = seen.requests
    assert one.ttft_s == pytest.approx(138e-3)
    assert one.at_s - one.arrived_s == pytest.approx(138e-3 + 15.3e-3 + 15.303e-3)
    assert (seen.num_steps, seen.ended_early) == (4, False)


shapes = st.tuples(st.floats(0.0, 3.0), st.integers(1, 700), st.integers(1, 40))


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(shapes, min_size=1, max_size=12), st.sampled_from(policies_for(TARGETS)))
def test_every_request_ends_with_its_own_length_whatever_the_policy(
    given_shapes: list[tuple[float, int, int]], policy: Policy
) -> None:
    requests = load(*sorted(given_shapes))
    machine = NoisyMachine(PLAIN, Noise(), Random(1))
    seen = Simulator(replica(policy, machine)).run(requests)

    ended = sorted(
        (request.arrived_s, request.shape.num_input, request.shape.num_output)
        for request in seen.requests
    )
    assert ended == sorted(given_shapes)
    assert all(
        request.arrived_s < request.first_token_s <= request.at_s for request in seen.requests
    )


def test_a_hopeless_load_is_broken_off() -> None:
    requests = load(*((0.001 * number, 640, 30) for number in range(100)))
    seen = simulator(MissLimit(1.0, 0.1, 10.0)).run(requests)

    assert seen.ended_early
    assert len(seen.requests) < 100


def test_those_that_still_wait_count_as_late() -> None:
    limit = MissLimit(1.0, 0.1, 1.0)
    limit.note_first(1.2)

    assert not limit.is_exceeded([9.5], now=10.0)
    assert limit.is_exceeded([8.5], now=10.0)


def test_answers_that_were_too_slow_count_too() -> None:
    limit = MissLimit(1.0, 0.1, 1.0)
    for tpot_s in (0.05, None, 0.2):
        limit.note_end(0.5, tpot_s)
    assert not limit.is_exceeded([], now=0.0)
    limit.note_end(0.5, 0.2)

    assert limit.is_exceeded([], now=0.0)


def test_a_request_that_missed_both_targets_counts_once() -> None:
    limit = MissLimit(1.0, 0.1, 1.0)
    limit.note_first(1.2)
    limit.note_end(1.2, 0.2)

    assert not limit.is_exceeded([], now=0.0)


# ── comparisons ─────────────────────────────────────────────────────────────────────────────────


def entry(policy: str, goodput: float, *, is_static: bool = True) -> PolicyResult:
    return PolicyResult(
        load_name="trace",
        machine="npu",
        targets=TARGETS,
        policy=policy,
        is_static=is_static,
        run=run_of(9.0, sustained=True, goodput=goodput) if goodput else None,
    )


def test_the_ratio_is_that_to_the_best_static_chunk() -> None:
    own = entry("SLO budget", 2.6, is_static=False)
    comparison = PolicyComparison([entry("static 64", 1.0), entry("static 128", 2.0), own])

    assert comparison.best_static is comparison.entries[1]
    assert comparison.ratio(own) == pytest.approx(1.3)


def test_where_no_static_chunk_sustains_a_load_there_is_no_ratio() -> None:
    own = entry("SLO budget", 2.6, is_static=False)

    assert PolicyComparison([entry("static 64", 0.0), own]).ratio(own) is None


def test_entries_of_one_load_and_target_make_a_comparison() -> None:
    requests = load(*((float(number), 20, 4) for number in range(30)))
    other = LatencyTargets(ttft_ms=2000.0, tpot_ms=50.0)
    tasks = tasks_for(
        [("trace", requests)],
        [TARGETS, other],
        machine="npu",
        chunks=(64,),
        noise=QUIET,
        seed=1,
    )

    comparisons = group_by_load(map(find_capacity, tasks))

    assert [len(comparison.entries) for comparison in comparisons] == [2, 2]
    assert comparisons[0].name == "npu, trace, TTFT 1000 ms, TPOT 100 ms"
    assert all(each.goodput > 0 for comparison in comparisons for each in comparison.entries)


def test_requests_are_cut_to_what_the_machine_holds() -> None:
    requests = load((0.0, 5000, 4), (1.0, 20, 4))
    (task, _) = tasks_for(
        [("trace", requests)], [TARGETS], machine="cpu", chunks=(64,), noise=QUIET, seed=1
    )

    assert task.load[0].shape.num_tokens == MACHINES["cpu"].max_seq_len
