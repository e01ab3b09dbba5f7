"""benchmarks.overlap: cases and rates, what its figures mean, and what goes wrong."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.overlap.cases import (
    Case,
    Work,
    cut_by,
    fitting,
    grid,
    rate_for,
    reachable_overlap,
)
from benchmarks.overlap.cli import app
from benchmarks.overlap.figures import CaseFigures, Timed
from benchmarks.overlap.gate import GateFigures
from benchmarks.overlap.link import stale
from benchmarks.overlap.plot import save_plot
from benchmarks.overlap.report import document
from benchmarks.overlap.serving_side import metrics_of
from tandem_engine.microbatch.overlap import StepOverlap

WORK = Work(num_tokens=512, num_prompts=1, num_layers=12)


def case(share: float | None = 1.0, *, work: Work = WORK) -> Case:
    return Case(work=work, share=share, repeats=1)


def timed(
    wall_s: float, *, compute: float, communication: float, exposed: float, is_cut: bool
) -> Timed:
    overlap = StepOverlap(compute_s=compute, communication_s=communication, exposed_s=exposed)
    return Timed(wall_s=wall_s, overlap=overlap, is_cut=is_cut)


def figures(
    *, communication: float, halves_s: float, exposed: float, is_cut: bool = True
) -> CaseFigures:
    """A step that computes for 10 s."""
    whole = timed(
        10.0 + communication,
        compute=10.0,
        communication=communication,
        exposed=communication,
        is_cut=False,
    )
    halves = timed(
        halves_s, compute=10.2, communication=communication, exposed=exposed, is_cut=is_cut
    )
    return CaseFigures.of(case(), [whole], [halves], rate=1e9)


def test_the_bytes_of_a_step_are_its_sums_in_float32() -> None:
    assert WORK.num_sums == 23
    assert WORK.link_bytes == 23 * 512 * 4096 * 4
    assert rate_for(WORK, 2.0) == WORK.link_bytes * 4


def test_between_two_stages_there_is_a_sum() -> None:
    stages = WORK.whole.stages(WORK.num_layers)

    assert len(stages) == WORK.num_sums + 1
    assert sum(stages) == WORK.operations


@pytest.mark.parametrize("prompts", [1, 16])
def test_halves_have_half_of_the_operations_each(prompts: int) -> None:
    work = Work(num_tokens=8192, num_prompts=prompts, num_layers=4)
    first, second = work.halves

    assert first.num_tokens + second.num_tokens == 8192
    assert first.num_tokens >= second.num_tokens
    # Behind the last layer's keys and values a long prompt's halves differ by their attention.
    assert sum(first.stages(100)) == pytest.approx(sum(second.stages(100)), rel=0.01)


def reached(
    share: float, *, num_tokens: int = 512, num_layers: int = 12, prompts: int = 16
) -> float:
    work = Work(num_tokens=num_tokens, num_prompts=prompts, num_layers=num_layers)
    return reachable_overlap(work.halves, num_layers, share)


def test_halves_reach_what_the_lengths_of_their_stages_allow() -> None:
    # Attention takes a half of what the MLP takes: at balance a sum of 3 has 1 of it to wait for
    # beside 2, and leaves 1 of 4; 1 of 6 in all.
    assert reached(1.0, num_layers=1000) == pytest.approx(5 / 6, abs=0.02)
    # A sum that takes less than either, or more, waits for nothing but at the ends.
    assert reached(0.5, num_layers=1000) > 0.995
    assert reached(1.6, num_layers=1000) > 0.995
    # The ends weigh more, the fewer layers there are.
    assert reached(0.5, num_layers=4) < reached(0.5) < reached(0.5, num_layers=48)
    # A long prompt has more attention: its stages are more alike.
    assert reached(1.0, num_tokens=8192, prompts=1) > reached(1.0, num_tokens=8192)


def test_steps_are_cut_by_what_long_prompts_take_in_addition() -> None:
    work = Work(num_tokens=8192, num_prompts=1, num_layers=4)
    in_16 = replace(work, num_prompts=16)
    seconds = {each: 2.0 * each.num_tokens + 0.001 * each.whole.pairs for each in (work, in_16)}

    prices = cut_by(work, compute_s=seconds[work], in_many_s=seconds[in_16])
    assert prices.token_s == pytest.approx(2.0)
    assert prices.pair_s == pytest.approx(0.001)

    by_operations = cut_by(work, compute_s=0.0, in_many_s=None)
    assert 0.0 < by_operations.pair_s < by_operations.token_s
    # Noise makes no price negative.
    assert cut_by(work, compute_s=1.0, in_many_s=1.1).pair_s == 0.0


def test_a_goal_beyond_reach_is_told_from_a_loss() -> None:
    at_balance = figures(communication=10.0, halves_s=12.0, exposed=2.0)

    assert at_balance.reachable < at_balance.overlap_goal
    assert at_balance.missed()[0] == "overlap (beyond reach)"


def test_tokens_are_divided_into_prompts() -> None:
    sixteen = Work(num_tokens=514, num_prompts=16, num_layers=1)

    assert sum(sixteen.prompts) == 514
    assert set(sixteen.prompts) == {32, 33}
    assert sixteen.operations < Work(num_tokens=514, num_prompts=1, num_layers=1).operations


@pytest.mark.parametrize(
    ("only", "names"),
    [
        pytest.param((), 4, id="all"),
        pytest.param(("one prompt",), 2, id="of one shape"),
        pytest.param(("16 prompts, 50%",), 1, id="one case"),
        pytest.param(("nothing",), 0, id="none"),
    ],
)
def test_cases_are_chosen_by_name(only: Sequence[str], names: int) -> None:
    found = grid(
        tokens=[512], shares=[0.5, 1.0], prompts=[1, 16], num_layers=2, repeats=1, only=only
    )

    assert len(found) == names


def test_what_tells_most_is_measured_where_not_all_fits() -> None:
    cases = grid(tokens=[512], shares=[0.25, 1.0], prompts=[1], num_layers=None, repeats=1)
    compute_s = {one.work: 10.0 for one in cases}

    taken, left_out = fitting(cases, compute_s, budget_s=65.0)

    assert [one.share for one in taken] == [1.0]
    assert [one.share for one in left_out] == [0.25]


def test_a_step_is_as_long_as_its_slowest_rank() -> None:
    early = timed(3.0, compute=1.0, communication=2.0, exposed=2.0, is_cut=False)
    late = timed(3.1, compute=2.0, communication=1.0, exposed=1.0, is_cut=False)

    found = Timed.of_ranks([early, late])

    assert found.wall_s == 3.1
    assert found.overlap.compute_s == found.overlap.communication_s == 1.5


def test_the_figures_of_a_step_that_hides_all_but_its_tail() -> None:
    found = figures(communication=5.0, halves_s=10.3, exposed=0.1)

    assert found.share == 0.5
    assert found.timeline_overlap == pytest.approx(0.98)
    assert found.wall_overlap == pytest.approx(4.7 / 5.0)
    assert found.tail_s == pytest.approx(5.0 / 46)
    assert found.bound == pytest.approx(15.0 / (10.0 + found.tail_s))
    assert found.of_bound == pytest.approx((10.0 + found.tail_s) / 10.3)
    assert found.halves_cost == pytest.approx(0.02)
    assert found.missed() == []


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        pytest.param(
            figures(communication=5.0, halves_s=10.8, exposed=0.1), ["overlap"], id="wall"
        ),
        pytest.param(
            figures(communication=15.0, halves_s=17.5, exposed=6.0),
            ["overlap", "speedup"],
            id="link",
        ),
        pytest.param(
            figures(communication=2.5, halves_s=12.8, exposed=0.0),
            ["overlap", "speedup", "slower"],
            id="slower than whole",
        ),
        pytest.param(
            figures(communication=5.0, halves_s=10.3, exposed=0.1, is_cut=False),
            ["not cut"],
            id="stayed whole",
        ),
    ],
)
def test_goals_that_are_missed_are_named(found: CaseFigures, missed: list[str]) -> None:
    assert found.missed() == missed


def test_the_document_and_the_plot_have_all_cases(tmp_path: Path) -> None:
    found = [figures(communication=5.0, halves_s=10.3, exposed=0.1)]
    told = document(found, facts={"begun": "now"}, settings={})
    save_plot(found, tmp_path / "plot.png", title="a title")

    assert told["begun"] == "now"
    assert told["cases"][0]["missed"] == []
    assert told["cases"][0]["case"]["work"]["num_tokens"] == 512
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_a_trace_that_is_not_there_is_refused_at_once() -> None:
    done = CliRunner().invoke(app, ["serving", "--trace", "/nowhere.csv"])

    assert done.exit_code == 1
    assert "/nowhere.csv cannot be read" in done.output


def test_only_namespaces_of_dead_benchmarks_are_stale() -> None:
    names = ["tandem-overlap-7-0", "tandem-overlap-8-1", "tandem-overlap-7-x", "other-7-0"]

    assert stale(names, living=frozenset({8})) == ["tandem-overlap-7-0"]


@pytest.mark.parametrize(
    ("ratios", "is_met"),
    [pytest.param((0.5, 0.995, 1.2), True, id="as fast"), pytest.param((0.98,), False, id="not")],
)
def test_micro_batches_may_cost_a_hundredth(ratios: tuple[float, ...], is_met: bool) -> None:
    found = GateFigures(
        link="loopback",
        load="decode",
        off_s=1.0,
        on_s=1.0,
        ratios=ratios,
        num_splits=0,
        num_splits_late=0,
        gates={},
    )

    assert found.is_met is is_met


def test_the_metrics_of_micro_batches_are_kept() -> None:
    text = (
        "# TYPE tandem_micro_batch_splits_total counter\n"
        'tandem_micro_batch_splits_total{model_name="m"} 3.0\n'
        'tandem_micro_batch_state{model_name="m",phase="prefill"} 1.0\n'
        'tandem_requests{model_name="m"} 9.0\n'
    )

    assert metrics_of(text) == {
        "tandem_micro_batch_splits_total": 3.0,
        "tandem_micro_batch_state prefill": 1.0,
    }


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        pytest.param(
            ["steps", "--shares", "0"], "greater than or equal to 1", id="no communication"
        ),
        pytest.param(["steps", "--tokens", "9000"], "less than or equal to 8192", id="too long"),
        pytest.param(["serving"], "Missing option '--trace'", id="no trace"),
        pytest.param(["gate", "--model", "X"], "Unknown model 'X'", id="no such model"),
    ],
)
def test_wrong_usage_says_so(command: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, command)

    assert done.exit_code == 2
    assert sentence in done.output
