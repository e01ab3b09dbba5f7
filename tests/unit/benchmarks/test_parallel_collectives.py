"""benchmarks.parallel collectives: what its figures mean, and a small run."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.parallel.cli import app
from benchmarks.parallel.collective_rank import SHARED_MEMORY, Measured
from benchmarks.parallel.collectives import _figures
from tests.unit.engine.native import native_kernels


def test_the_share_counts_each_tensor_read_and_written_once() -> None:
    measured = Measured(way=SHARED_MEMORY, size=1_000_000, seconds=(1e-3, 2e-3, 3e-3))
    found = _figures(measured, ranks=2, copy_rate=4.0)

    assert found.median_us == pytest.approx(2000)
    assert found.gb_per_s == pytest.approx(2.0)
    assert found.share_of_copy == pytest.approx(0.5)


def test_a_run_writes_its_figures(tmp_path: Path) -> None:
    native_kernels()
    out = tmp_path / "new" / "out.json"
    command = ["collectives", "--size", "1024", "--seconds", "0", "--out", str(out)]

    done = CliRunner().invoke(app, command)

    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text(encoding="utf-8"))
    assert [one["way"] for one in told["all_reduce"]] == [SHARED_MEMORY]
    assert told["settings"]["ranks"] == 2
    assert told["copy_gb_per_s"][0] > 0


def test_wrong_usage_says_so() -> None:
    done = CliRunner().invoke(app, ["collectives", "--ranks", "0"])

    assert done.exit_code == 2
    assert "greater than or equal to 1" in done.output
