"""benchmarks.parallel tp: what its figures mean, its plot, and the cores of its ranks."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.parallel.cli import app
from benchmarks.parallel.tp_figures import MEMORY_GOAL, RankBytes, Ratios
from benchmarks.parallel.tp_plot import save_plot
from benchmarks.parallel.tp_side import cores_of


def ratios(*values: float) -> Ratios:
    return Ratios(
        load="decode 1 row",
        goal=0.9,
        one_rank_ms=20.0,
        ranks_ms=21.0,
        ratios=values,
        quiet_ratio=1.0,
    )


def rank_bytes(rank: int, *, anonymous: int, shared: int) -> RankBytes:
    held = {
        "RssAnon": anonymous,
        "RssShmem": shared,
        "RssFile": 7,
        "VmHWM": 9,
        "Private": anonymous,
    }
    return RankBytes(rank=rank, held=held, share=800, base=300)


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    found = ratios(0.5, 0.9, 1.0, 1.1, 9.0)

    assert found.ratio == 1.0
    assert found.quarters == pytest.approx((0.7, 5.05))


def test_one_round_is_its_own_quarters() -> None:
    assert ratios(0.9).quarters == (0.9, 0.9)


def test_pages_of_files_belong_to_all_ranks() -> None:
    found = rank_bytes(0, anonymous=1000, shared=50)

    assert (found.own, found.beside) == (1050, 250)


def test_what_a_rank_costs_are_the_pages_that_no_other_has() -> None:
    found = rank_bytes(0, anonymous=MEMORY_GOAL + 800, shared=50)

    assert found.private == MEMORY_GOAL
    assert found.is_met
    assert not rank_bytes(0, anonymous=MEMORY_GOAL + 801, shared=0).is_met


@pytest.mark.parametrize(
    ("rank", "num_threads", "usable", "cores"),
    [
        pytest.param(0, 1, [0, 1], {0}, id="the first of two"),
        pytest.param(1, 1, [0, 1], {1}, id="the second"),
        pytest.param(0, 2, [0, 1], {0, 1}, id="one rank of two threads"),
        pytest.param(1, 2, [0, 4, 5, 6], {5, 6}, id="cores with gaps"),
        pytest.param(3, 1, [0, 1], {0, 1}, id="more ranks than cores"),
    ],
)
def test_each_rank_has_cores_of_its_own(
    rank: int, num_threads: int, usable: list[int], cores: set[int]
) -> None:
    assert cores_of(rank, num_threads, usable) == cores


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "tp.png"
    memory = [rank_bytes(rank, anonymous=MEMORY_GOAL, shared=0) for rank in range(2)]

    save_plot([ratios(0.9, 1.0)], memory, file, title="Model S")

    assert file.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_model_is_refused() -> None:
    done = CliRunner().invoke(app, ["tp", "--model", "XXL"])

    assert done.exit_code != 0
    assert "XXL" in done.output
