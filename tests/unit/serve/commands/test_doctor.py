"""`tandem doctor`: what it prints, and with which code it ends."""

import pytest
from typer.testing import CliRunner

from tandem_engine import doctor
from tandem_engine.api.errors import ConfigError
from tandem_engine.doctor import Examination, Finding
from tandem_serve.cli import app

runner = CliRunner()
RIGHT = Finding("RMS norm", 0.001)
WRONG = Finding("SwiGLU", 0.02)
REFUSED = Finding("attention", float("inf"), "EZ9999: no such operator")


def examined(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> None:
    monkeypatch.setattr(
        doctor, "examine_device", lambda name: Examination(f"a {name} of the test", findings)
    )


def test_all_kernels_right_end_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    examined(monkeypatch, RIGHT)

    result = runner.invoke(app, ["doctor", "npu"])

    title, *lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert title.startswith("npu: a npu of the test, Python 3.")
    assert ", torch 2." in title
    assert [line.split() for line in lines] == [
        ["kernel", "largest", "error", "at", "most", "1.56%"],
        ["RMS", "norm", "0.10%", "right"],
        ["all", "1", "kernels", "are", "right"],
    ]


def test_wrong_kernels_are_named_and_end_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    examined(monkeypatch, RIGHT, WRONG, REFUSED)

    result = runner.invoke(app, ["doctor"])

    assert result.exit_code == 1
    rows = [line.split(maxsplit=2) for line in result.stdout.splitlines()[3:5]]
    assert rows[0][:2] == ["SwiGLU", "2.00%"]
    assert rows[1][:2] == ["attention", "-"]
    assert "refused: EZ9999: no such operator" in result.stdout
    assert "2 of 3 kernels are wrong; please report all of this" in result.stdout


def test_a_device_that_cannot_be_used_ends_with_its_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: str) -> Examination:
        raise ConfigError("device npu needs a card")

    monkeypatch.setattr(doctor, "examine_device", fail)

    result = runner.invoke(app, ["doctor", "npu"])

    assert result.exit_code == 1
    assert result.stderr == "error: device npu needs a card\n"
