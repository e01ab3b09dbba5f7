"""`tandem timeline`: the files that it writes, its line of figures, and its refusals."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from tandem_engine.api.timeline import Timeline
from tandem_serve.api.timeline_summary import summary_of
from tandem_serve.api.trace_events import trace_document
from tandem_serve.cli import app
from tandem_serve.commands.timeline import TimelineClient, summary_line
from tandem_serve.errors import ServeError
from tandem_serve.fake_timeline import FAKE_TIMELINE
from tandem_serve.testing import FakeEngine
from tests.unit.serve.local_services import RECORD, serving, silent_url

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
SUMMARY = summary_of(FAKE_TIMELINE, "tiny")

runner = CliRunner()


@pytest.fixture(autouse=True)
def _own_records_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TANDEM_API_KEY", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for what is written."""
    made = tmp_path / "written"
    made.mkdir()
    return made


def test_help_has_examples() -> None:
    done = runner.invoke(app, ["timeline", "--help"])

    assert done.exit_code == 0
    for words in ("Examples", "tandem timeline -o trace.json", "--png", "ui.perfetto.dev"):
        assert words in done.stdout


def test_it_writes_the_trace_and_says_what_is_in_it(folder: Path) -> None:
    file = folder / "trace.json"
    engine = FakeEngine()
    with serving(engine) as url:
        done = runner.invoke(
            app, ["timeline", "--url", url, "--steps", "5", "--within", "2", "-o", str(file)]
        )

    assert done.exit_code == 0, done.stderr
    assert json.loads(file.read_bytes()) == trace_document(FAKE_TIMELINE, SUMMARY)
    assert engine.recorded == [(5, 2.0)]
    assert done.stderr == "recording up to 5 steps, for 2 s at most…\n"
    assert done.stdout.splitlines() == [
        "2 steps on 2 ranks, 24 slices; 1 cut step hid 6.0 of 8.0 ms of communication, "
        "an overlap of 0.75",
        f"{file}: open the trace at https://ui.perfetto.dev",
    ]
    assert [*folder.iterdir()] == [file]


def test_a_picture_is_drawn_beside_it(folder: Path) -> None:
    file, picture = folder / "trace.json", folder / "timeline.png"
    with serving(FakeEngine()) as url:
        done = runner.invoke(
            app, ["timeline", "--url", url, "-o", str(file), "--png", str(picture)]
        )

    assert done.exit_code == 0, done.stderr
    assert picture.read_bytes().startswith(PNG_MAGIC)
    assert f"{file} and {picture}: open the trace at" in done.stdout
    assert sorted(folder.iterdir()) == [picture, file]


def test_a_file_that_is_there_is_replaced(folder: Path) -> None:
    file = folder / "trace.json"
    file.write_text("old")
    with serving(FakeEngine()) as url:
        done = runner.invoke(app, ["timeline", "--url", url, "-o", str(file)])

    assert done.exit_code == 0
    assert "traceEvents" in json.loads(file.read_bytes())


def test_a_service_that_computes_nothing_leaves_the_file_as_it_was(folder: Path) -> None:
    file = folder / "trace.json"
    file.write_text("old")
    engine = FakeEngine()
    engine.shown_timeline = Timeline(steps=())
    with serving(engine) as url:
        done = runner.invoke(app, ["timeline", "--url", url, "--within", "0.5", "-o", str(file)])

    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: {url} computed no step within 0.5 s, so there is nothing to write; send it a "
        "request meanwhile, or wait longer with --within."
    )
    assert file.read_text() == "old"
    assert [*folder.iterdir()] == [file]


def refusal(*options: str) -> str:
    """What is said when nothing may be recorded; the service would give a timeline."""
    engine = FakeEngine()
    with serving(engine) as url:
        done = runner.invoke(app, ["timeline", "--url", url, *options])
    assert done.exit_code == 1
    assert engine.recorded == []
    [line] = done.stderr.splitlines()
    return line


def test_what_cannot_be_written_is_refused_before_anything_is_recorded(folder: Path) -> None:
    file, other = folder / "trace.json", folder / "none" / "trace.json"

    assert refusal("-o", str(folder)) == f"error: -o {folder} is a folder; name a file to write."
    assert refusal("-o", "/dev/null").endswith(
        "-o /dev/null is no regular file; name a file to write."
    )
    assert refusal("-o", str(other)) == (
        f"error: -o {other} cannot be written: No such file or directory; name a file in a folder "
        "that is there and yours."
    )
    assert refusal("-o", str(file), "--png", str(folder)).startswith(f"error: --png {folder} is a")
    assert refusal("-o", str(file), "--png", str(file)).endswith(
        f"are both {file}; name two files."
    )
    assert [*folder.iterdir()] == []


def test_a_picture_needs_matplotlib(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "tandem_serve.commands.timeline_picture", raising=False)

    line = refusal("-o", str(folder / "trace.json"), "--png", str(folder / "timeline.png"))

    assert line == ("error: --png needs matplotlib: pip install matplotlib, or leave --png out.")


def test_a_local_service_is_found_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(folder / "trace.json")
    with serving(FakeEngine()) as url:
        record = replace(RECORD, port=int(url.rpartition(":")[2]))
        monkeypatch.setattr("tandem_serve.local.services.read_records", lambda: [record])
        named = runner.invoke(app, ["timeline", "tiny", "-o", file])
        other = runner.invoke(app, ["timeline", "large", "-o", file])
        both = runner.invoke(app, ["timeline", "tiny", "--url", url, "-o", file])

    assert (named.exit_code, other.exit_code, both.exit_code) == (0, 1, 1)
    assert "No service 'large' runs here; running: tiny." in other.stderr
    assert "give only one" in both.stderr


def test_it_says_what_to_do_when_nothing_answers(folder: Path) -> None:
    with silent_url() as url:
        done = runner.invoke(app, ["timeline", "--url", url, "-o", str(folder / "trace.json")])

    assert done.exit_code == 1
    assert f"error: No server answers at {url} (" in done.stderr
    assert [*folder.iterdir()] == []


def test_it_says_when_a_key_is_needed(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "one").write_text("sk-1")
    options = ["-o", str(folder / "trace.json")]
    with serving(FakeEngine(), keys) as url:
        without = runner.invoke(app, ["timeline", "--url", url, *options])
        right = runner.invoke(app, ["timeline", "--url", url, "--api-key", "sk-1", *options])

    assert f"{url} requires an API key; pass one with --api-key" in without.stderr
    assert (without.exit_code, right.exit_code) == (1, 0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(404), "has no /debug/timeline: it is not a service of Tandem, or an older"),
        (httpx.Response(200, text="hello"), "does not answer with a timeline of this version"),
        (httpx.Response(200, json={"traceEvents": []}), "does not answer with a timeline of this"),
        (httpx.Response(200, json=[]), "does not answer with a timeline of this version"),
        (httpx.Response(429, json={"error": {"message": "Busy."}}), "answered: Busy."),
    ],
)
def test_other_answers_are_put_into_words(answer: httpx.Response, words: str) -> None:
    transport = httpx.MockTransport(lambda _: answer)
    client = TimelineClient("http://service/v1/", None, transport=transport)

    with pytest.raises(ServeError, match=f"http://service .*{words}"):
        client.summary(client.record(20, 1.0), 1.0)


def test_the_line_says_when_no_step_was_cut() -> None:
    whole = summary_of(Timeline(steps=FAKE_TIMELINE.steps[:1]), "tiny")

    assert summary_line(whole) == "1 step on 1 rank, 4 slices; no step was cut"
