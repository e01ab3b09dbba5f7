"""benchmarks.prompt_logprobs: a run with a small model, and what it says to wrong usage."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.peers.shapes import SHAPES
from benchmarks.prompt_logprobs.cli import app


@pytest.mark.slow
def test_both_sides_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.json"
    options = ("--model", "S", "--tokens", "64", "--rounds", "1", "--threads", "1")
    folders = ("--models", str(tmp_path), "--out", str(out))

    done = CliRunner().invoke(app, [*options, *folders])

    assert done.exit_code == 0, done.output
    figures = json.loads(out.read_text(encoding="utf-8"))["figures"]
    assert set(figures) == {"with", "without"}
    for side in figures.values():
        assert side["wall_s"] > 0
        assert side["cpu_s"] > 0
        assert side["largest_gap_s"] >= side["gap_s"] > 0
    assert "ratio" in done.output


def test_an_unknown_model_is_named() -> None:
    done = CliRunner().invoke(app, ["--model", "X"])

    assert done.exit_code == 2
    assert f"--model 'X' is not one of {', '.join(SHAPES)}" in done.output


@pytest.mark.slow
def test_a_prompt_that_the_model_does_not_take_is_wrong_usage(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--model", "S", "--tokens", "5000", "--models", str(tmp_path)])

    assert done.exit_code == 2
    assert (
        "A prompt of 5000 tokens in chunks of 256 cannot be measured with model S: maxSeqLen is "
        "5001, the model is made for" in " ".join(done.output.split())
    )


def test_a_chunk_that_is_no_multiple_of_16_is_wrong_usage() -> None:
    done = CliRunner().invoke(app, ["--chunk", "17"])

    assert done.exit_code == 2
    assert "17 is not a multiple of 16" in done.output
