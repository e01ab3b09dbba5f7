"""`tandem steps`: what it shows, how it goes on, and what it says when there is nothing."""

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from itertools import islice
from pathlib import Path

import httpx
import pytest
from pydantic_core import to_json
from rich.console import Console
from typer.testing import CliRunner

from tandem_engine.api.steps import (
    RowExplanation,
    StepExplanation,
    WaitExplanation,
)
from tandem_serve.api.steps import StepsReport
from tandem_serve.cli import app
from tandem_serve.commands.step_view import bar, left_out, line, view
from tandem_serve.commands.steps import StepsClient, new_steps, watch
from tandem_serve.errors import ServeError
from tandem_serve.testing import LIMITS, FakeEngine
from tests.unit.serve.local_services import RECORD, serving, silent_url

WAIT = WaitExplanation(
    sequence_id="d", reason="kv_blocks", text="d waits for KV blocks: 3 free, 8 needed."
)
STEP = StepExplanation(
    number=7,
    started=1_800_000_000.0,
    seconds=0.0204,
    predicted_s=0.0188,
    token_budget=64,
    max_token_budget=512,
    num_decode_tokens=16,
    num_prefill_tokens=32,
    num_decodes=16,
    num_drafts=0,
    num_accepted=0,
    rows=(
        *(
            RowExplanation(sequence_id=f"a{i}", kind="decode", num_tokens=1, start=30)
            for i in range(16)
        ),
        RowExplanation(
            sequence_id="b", kind="chunk", num_tokens=32, start=16, num_known=100, num_hit=16
        ),
    ),
    recomputed=("c",),
    swapped=(),
    blocked_by=WAIT,
    skipped=(),
    num_waiting=3,
    num_swapped=0,
)

runner = CliRunner()


@pytest.fixture(autouse=True)
def _own_records_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TANDEM_API_KEY", raising=False)


class FakeSteppedEngine(FakeEngine):
    """An engine with steps behind it."""

    def __init__(self, kept: Sequence[StepExplanation]) -> None:
        super().__init__()
        self.kept_steps = list(kept)


def report(*numbers: int, newest: int | None = None) -> StepsReport:
    return StepsReport(
        model="tiny",
        time=1_800_000_000.0,
        newest=newest if newest is not None else max(numbers, default=None),
        limits=LIMITS,
        stats=FakeEngine().stats(),
        steps=tuple(replace(STEP, number=number) for number in numbers),
    )


class FakeService:
    """A service that gives one answer after the other, and records the queries."""

    def __init__(self, *reports: StepsReport) -> None:
        self._reports = iter(reports)
        self.requested: list[tuple[int, int]] = []

    def client(self) -> StepsClient:
        return StepsClient("http://service", None, transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        query = request.url.params
        self.requested.append((int(query["since"]), int(query["limit"])))
        return httpx.Response(200, content=to_json(next(self._reports)))


def no_pause() -> None:
    """The answers are there at once."""


def shown(renderable: object) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(renderable)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_help_has_examples() -> None:
    done = runner.invoke(app, ["steps", "--help"])

    assert done.exit_code == 0
    for words in ("Examples", "tandem steps --follow --json", "--once", "--url"):
        assert words in done.stdout


def test_a_bar_has_decodes_prompts_and_what_is_left_of_the_budget() -> None:
    # 16 of 64 tokens are a quarter of 16 cells, 32 are half.
    assert bar(STEP, most=64, width=16).plain == "████▓▓▓▓▓▓▓▓░░░░"


def test_without_a_budget_bars_are_compared_with_the_largest_step() -> None:
    step = replace(STEP, token_budget=0)

    assert bar(step, most=96, width=12).plain == "██▓▓▓▓      "


def test_a_single_token_is_seen_in_a_large_budget() -> None:
    step = replace(STEP, token_budget=8192, num_decode_tokens=1, num_prefill_tokens=0)

    assert bar(step, most=8192, width=8).plain == "█░░░░░░░"


def test_a_step_over_its_budget_still_fits_its_bar() -> None:
    step = replace(STEP, token_budget=10)

    assert len(bar(step, most=10, width=8).plain) == 8


def test_a_row_of_the_table_says_time_tokens_rows_and_reasons() -> None:
    text = shown(view(report(7), "http://service"))

    assert "tiny at http://service" in text
    assert "64 KV blocks: 0 held, 0 cached, 64 free; capacity for 8 × 128 tokens" in text
    row = text.splitlines()[-1]
    for words in ("7", "20.4", "18.8", "48/64", "16 decodes, b 16-48 of 100 (16 cached)"):
        assert words in row
    assert (
        "preempted, to be recomputed: c; d waits for KV blocks: 3 free, 8 needed (2 behind it)"
        in row
    )


def test_the_newest_step_stands_first() -> None:
    rows = shown(view(report(7, 8, 9), "http://service")).splitlines()[-3:]

    assert [row.split()[0] for row in rows] == ["9", "8", "7"]


def test_a_narrow_terminal_shows_every_figure() -> None:
    console = Console(file=StringIO(), width=100)
    console.print(view(report(1234567), "http://service"))
    file = console.file

    assert isinstance(file, StringIO)
    for figure in ("1234567", "20.4", "18.8", "48/64"):
        assert figure in file.getvalue()


def test_a_line_says_the_same() -> None:
    text = line(STEP)

    assert text.startswith("7  ")
    assert "20.4 ms (18.8 predicted)  48/64 tokens: 16 decodes, b 16-48 of 100" in text
    assert text.endswith("d waits for KV blocks: 3 free, 8 needed (2 behind it)")


def test_a_step_without_sequences_says_so() -> None:
    empty = replace(
        STEP,
        rows=(),
        num_decodes=0,
        num_decode_tokens=0,
        num_prefill_tokens=0,
        recomputed=(),
        blocked_by=None,
    )

    assert line(empty).endswith("0/64 tokens: no sequence")


def test_a_step_that_is_being_computed_has_no_time_yet() -> None:
    assert "  - ms (18.8 predicted)" in line(replace(STEP, seconds=None))
    assert "predicted" not in line(replace(STEP, predicted_s=None))


def test_many_that_lost_their_turn_are_counted() -> None:
    many = tuple(replace(WAIT, text=f"r{i} waits.") for i in range(9))

    said = list(left_out(replace(STEP, recomputed=(), blocked_by=None, skipped=many)))

    assert said == ["r0 waits", "r1 waits", "r2 waits", "6 more sequences are skipped"]


def test_a_table_shortens_long_ids_and_a_line_does_not() -> None:
    long = "d7e2c27d076343518f7d0c01abbc6569-2544d51b-0-5-0"
    wait = replace(WAIT, sequence_id=long, text=f"{long} waits for KV blocks.")
    row = RowExplanation(sequence_id=long, kind="chunk", num_tokens=32, start=16)
    step = replace(STEP, rows=(row,), recomputed=(long,), blocked_by=wait)

    text = shown(view(replace(report(7), steps=(step,)), "http://service"))

    assert long not in text
    assert text.count("d7e2c27d…-0-5-0") == 3
    assert line(step).count(long) == 3


def test_what_is_in_a_name_is_not_markup() -> None:
    odd = replace(STEP, recomputed=("[red]x[/red]",))

    assert "[red]x[/red]" in shown(view(replace(report(7), steps=(odd,)), "u"))


def test_following_shows_each_step_once() -> None:
    answers = FakeService(report(5, 6), report(newest=6), report(7, 8), report(9))

    numbers = [step.number for step in islice(new_steps(answers.client(), 20, no_pause), 5)]

    assert numbers == [5, 6, 7, 8, 9]
    assert answers.requested == [(0, 20), (7, 512), (7, 512), (9, 512)]


def test_a_step_that_is_being_computed_is_shown_when_it_is_over() -> None:
    half = replace(report(5, 6), steps=(*report(5).steps, replace(STEP, number=6, seconds=None)))
    answers = FakeService(half, report(6))

    followed = list(islice(new_steps(answers.client(), 20, no_pause), 2))

    assert [step.number for step in followed] == [5, 6]
    assert all(step.seconds is not None for step in followed)


def test_following_says_when_steps_came_too_fast(capfd: pytest.CaptureFixture[str]) -> None:
    answers = FakeService(report(5), report(9, 10))

    numbers = [step.number for step in islice(new_steps(answers.client(), 20, no_pause), 3)]

    assert numbers == [5, 9, 10]
    assert (
        "3 steps are not shown: they came faster than this command reads" in capfd.readouterr().err
    )


def test_following_restarts_with_the_engine(capfd: pytest.CaptureFixture[str]) -> None:
    answers = FakeService(report(500), report(newest=2), report(0, 1, 2))

    numbers = [step.number for step in islice(new_steps(answers.client(), 20, no_pause), 4)]

    assert numbers == [500, 0, 1, 2]
    assert "Step numbers restart" in capfd.readouterr().err


def test_the_live_view_is_drawn_again_until_interrupted() -> None:
    answers = FakeService(report(1), report(1, 2))
    console = Console(file=StringIO(), force_terminal=True, width=200, height=30)
    looks = iter([None])

    def pause() -> None:
        if next(looks, "end") == "end":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(answers.client(), 40, pause, console)

    assert answers.requested == [(0, 26), (0, 26)], "as many steps as the terminal has lines for"
    file = console.file
    assert isinstance(file, StringIO)
    assert file.getvalue().count("tiny") >= 2


def test_once_prints_a_table_and_leaves() -> None:
    with serving(FakeSteppedEngine([STEP])) as url:
        done = runner.invoke(app, ["steps", "--url", url, "--once"])

    assert done.exit_code == 0, done.stderr
    assert f"tiny at {url}" in done.stdout
    assert "16 decodes, b 16-48 of 100 (16 cached)" in done.stdout
    assert "d waits for KV blocks: 3 free, 8 needed (2 behind it)" in done.stdout


def test_json_is_an_object_for_each_step() -> None:
    kept = [replace(STEP, number=number) for number in range(5)]
    with serving(FakeSteppedEngine(kept)) as url:
        done = runner.invoke(app, ["steps", "--url", url, "--json", "-n", "2"])

    documents = [json.loads(text) for text in done.stdout.splitlines()]
    assert [document["number"] for document in documents] == [3, 4]
    assert documents[0]["blocked_by"]["text"] == WAIT.text
    assert len(documents[0]["rows"]) == 17, "each row is there, where a program reads them"


def test_a_local_service_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeSteppedEngine([STEP])) as url:
        port = int(url.rpartition(":")[2])
        record = replace(RECORD, port=port)
        monkeypatch.setattr("tandem_serve.local.services.read_records", lambda: [record])
        alone = runner.invoke(app, ["steps"])
        named = runner.invoke(app, ["steps", "tiny", "--json"])
        other = runner.invoke(app, ["steps", "large"])

    assert alone.exit_code == named.exit_code == 0
    assert json.loads(named.stdout)["number"] == 7
    assert other.exit_code == 1
    assert "No service 'large' runs here; running: tiny." in other.stderr


def test_it_says_what_to_do_when_nothing_runs_here() -> None:
    done = runner.invoke(app, ["steps"])

    assert done.exit_code == 1
    assert "No service runs here; start one with: tandem serve -f FILE" in done.stderr


def test_it_says_what_to_do_when_nothing_answers() -> None:
    with silent_url() as url:
        done = runner.invoke(app, ["steps", "--url", url])

    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: No server answers at {url} (")
    assert "tandem serve -f FILE starts one" in done.stderr


def test_it_says_when_a_key_is_needed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "one").write_text("sk-1")
    with serving(FakeSteppedEngine([STEP]), keys) as url:
        without = runner.invoke(app, ["steps", "--url", url, "--once"])
        wrong = runner.invoke(app, ["steps", "--url", url, "--once", "--api-key", "sk-2"])
        right = runner.invoke(app, ["steps", "--url", url, "--once", "--api-key", "sk-1"])

    assert without.stderr.splitlines() == [
        f"error: {url} requires an API key; pass one with --api-key or in TANDEM_API_KEY."
    ]
    assert f"error: {url} answered: The API key is not valid" in wrong.stderr
    assert (without.exit_code, wrong.exit_code, right.exit_code) == (1, 1, 0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(404), "has no /debug/steps"),
        (httpx.Response(200, text="hello"), "does not answer with steps of this version of Tandem"),
        (httpx.Response(502, text="<html>"), "answered: status 502"),
        (httpx.Response(503, json={"error": {"message": "Starting."}}), "answered: Starting."),
    ],
)
def test_other_answers_are_put_into_words(answer: httpx.Response, words: str) -> None:
    client = StepsClient(
        "http://service/v1/", None, transport=httpx.MockTransport(lambda _: answer)
    )

    with pytest.raises(ServeError, match=f"http://service .*{words}"):
        client.report(limit=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["tiny", "--url", "http://x"], "give only one"),
        (["--once", "--follow"], "--once reads once, --follow keeps reading"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], words: str) -> None:
    done = runner.invoke(app, ["steps", *options])

    assert done.exit_code == 1
    assert words in done.stderr
