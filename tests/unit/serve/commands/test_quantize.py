"""`tandem quantize`: what it prints and with which code it ends."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem_serve.cli import app
from tests.tiny import TINY

runner = CliRunner()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    shutil.copytree(TINY, folder)
    return folder


def test_it_shows_the_worst_layers_and_the_sizes(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"

    result = runner.invoke(app, ["quantize", str(source), str(target)])

    lines = result.stdout.splitlines()
    assert result.exit_code == 0, result.output
    assert lines[0].split() == ["layer", "outputs", "×", "inputs", "error"]
    assert lines[1].split() == ["model.layers.0.mlp.down_proj", "192", "×", "512", "0.960%"]
    assert lines[-2] == "and 18 layers with smaller errors; --all shows them"
    assert lines[-1] == (
        f"{target}: 3.1 MiB of weights became 1.6 MiB (53%); 28 linear layers are in 8 bits"
    )
    assert (target / "config.json").is_file()


def test_all_layers_can_be_shown_and_the_head_is_one_of_them(source: Path, tmp_path: Path) -> None:
    options = ["--all", "--head", "--format", "msmodelslim"]

    result = runner.invoke(app, ["quantize", str(source), str(tmp_path / "out"), *options])

    lines = result.stdout.splitlines()
    assert result.exit_code == 0, result.output
    assert len(lines) == 1 + 29 + 1
    assert any(line.startswith("lm_head ") for line in lines)
    assert (tmp_path / "out" / "quant_model_description.json").is_file()


def test_a_folder_that_is_there_is_refused_in_one_sentence(source: Path, tmp_path: Path) -> None:
    result = runner.invoke(app, ["quantize", str(source), str(source)])

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        f"error: {source} exists already and is not overwritten; name another folder, "
        "or remove it first\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_folder_that_cannot_be_made_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    result = runner.invoke(app, ["quantize", str(source), str(tmp_path / "file" / "out")])

    assert result.exit_code == 1
    assert "nothing was written" in result.stderr


def test_another_format_is_refused_with_the_ones_there_are(source: Path, tmp_path: Path) -> None:
    result = runner.invoke(
        app, ["quantize", str(source), str(tmp_path / "out"), "--format", "gguf"]
    )

    assert result.exit_code == 2
    assert "compressed-tensors" in result.stderr


def test_the_help_has_examples() -> None:
    result = runner.invoke(app, ["quantize", "--help"])

    assert result.exit_code == 0
    assert "tandem quantize models/qwen3 models/qwen3-w8a8" in result.stdout
