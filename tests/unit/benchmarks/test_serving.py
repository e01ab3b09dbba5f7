"""The whole load generator against the real HTTP layer over an engine that answers at once."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from benchmarks.serving.cli import app
from tandem_serve.testing import FakeEngine, fake_app

PNG = b"\x89PNG\r\n"
HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@contextmanager
def served(application: FastAPI) -> Iterator[str]:
    config = uvicorn.Config(application, port=0, log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    [listener] = server.servers[0].sockets
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(fake_app(FakeEngine())) as address:
        yield address


@pytest.fixture(scope="module")
def failing_url() -> Iterator[str]:
    engine = FakeEngine(fails_after=2, failure=RuntimeError("The model fell over."))
    with served(fake_app(engine)) as address:
        yield address


@pytest.fixture
def run() -> Callable[..., Result]:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)

    return invoke


def test_two_cases_give_a_table_a_document_and_a_plot(
    run: Callable[..., Result], url: str, tmp_path: Path
) -> None:
    cases = ("--case", "1x8x4", "--case", "3x16x8", "--requests", "6")

    done = run("--url", url, *cases, "--ttft-ms", "60000", "--out", str(tmp_path / "new" / "r"))

    assert done.exit_code == 0, done.output
    assert "output tok/s" in done.output
    document = json.loads((tmp_path / "new" / "r" / "result.json").read_text())
    assert (tmp_path / "new" / "r" / "result.png").read_bytes().startswith(PNG)
    assert [case["name"] for case in document["cases"]] == ["1x8x4", "3x16x8"]
    for case in document["cases"]:
        assert (case["num_requests"], case["num_failed"], case["failures"]) == (6, 0, [])
        assert case["goodput"]["share"] == 1
        assert 0 < case["ttft_ms"]["p50"] <= case["e2e_ms"]["p50"]
        assert case["output_tokens_per_s"] > 0
    assert document["server"]["model"] == "tiny"
    assert document["machine"]["num_cores"] >= 1
    assert document["settings"]["load"]["cases"] == ["1x8x4", "3x16x8"]


def test_requests_have_exactly_the_requested_lengths(run: Callable[..., Result]) -> None:
    engine = FakeEngine()

    with served(fake_app(engine)) as url:
        done = run("--url", url, "--case", "2x16x8", "--requests", "4", "--warmup", "1")

    assert done.exit_code == 0, done.output
    assert [len(each.prompt_token_ids) for each in engine.submitted] == [16] * 5
    assert [each.sampling.max_tokens for each in engine.submitted] == [8] * 5
    assert len({each.prompt_token_ids for each in engine.submitted}) == 5


def test_a_duration_ends_a_closed_loop(
    run: Callable[..., Result], url: str, tmp_path: Path
) -> None:
    done = run("--url", url, "--case", "2x8x4", "--duration", "0.2", "--out", str(tmp_path))

    assert done.exit_code == 0, done.output
    [case] = json.loads((tmp_path / "result.json").read_text())["cases"]
    assert case["num_requests"] >= 2
    assert 0.1 < case["wall_s"] < 20


def test_an_open_loop_sends_what_arrives(
    run: Callable[..., Result], url: str, tmp_path: Path
) -> None:
    done = run(
        *("--url", url, "--case", "0x8x4", "--case", "2x8x4", "--rate", "200"),
        *("--requests", "10", "--out", str(tmp_path)),
    )

    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "result.json").read_text())
    assert [case["num_requests"] for case in document["cases"]] == [10, 10]
    assert [case["num_failed"] for case in document["cases"]] == [0, 0]


def test_a_trace_is_replayed_and_tells_what_it_cut(
    run: Callable[..., Result], url: str, tmp_path: Path
) -> None:
    trace = tmp_path / "day.csv"
    trace.write_text(HEAD + "2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:56.68,9,5\n")

    done = run("--url", url, "--trace", str(trace), "--speed", "1000", "--warmup", "0")

    assert done.exit_code == 0, done.output
    assert "day ×1000: 1 requests were cut to the model's length." in done.output


def test_requests_that_fail_are_shown_with_their_reason(
    run: Callable[..., Result], failing_url: str
) -> None:
    done = run("--url", failing_url, "--case", "1x8x4", "--requests", "2")

    assert done.exit_code == 1
    assert "2 × error in the stream" in done.output
    assert "error: No request of 1x8x4 succeeded." in done.output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (["--url", "http://127.0.0.1:9", "--case", "1x8x4"], 1, "No server answers at"),
        (["--url", "localhost", "--case", "1x8x4"], 2, "'localhost' is not a URL"),
        (["--case", "16x32"], 2, "'16x32' is not a case"),
        ([], 2, "Give --case or --trace"),
        (["--case", "1x8x4", "--file", "none.yaml"], 1, "none.yaml cannot be served"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    run: Callable[..., Result], arguments: list[str], exit_code: int, sentence: str
) -> None:
    done = run(*arguments)

    assert done.exit_code == exit_code
    assert done.output.startswith(f"error: {sentence}")
    assert done.output.count("\n") == 1


def test_an_empty_trace_is_one_sentence(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text(HEAD)

    done = run("--url", "http://127.0.0.1:9", "--trace", str(tmp_path / "empty.csv"))

    assert (done.exit_code, done.output) == (1, "error: The trace has no rows.\n")


def test_a_case_longer_than_the_model_is_refused(run: Callable[..., Result], url: str) -> None:
    done = run("--url", url, "--case", "1x1000x4")

    assert done.exit_code == 2
    assert "The case 1x1000x4 needs 1004 tokens a request; the model takes 128" in done.output


def test_another_model_than_is_served_is_refused(run: Callable[..., Result], url: str) -> None:
    done = run("--url", url, "--case", "1x8x4", "--model", "huge")

    assert done.exit_code == 1
    assert "serves tiny, not 'huge'." in done.output


def test_help_shows_how_to_use_it(run: Callable[..., Result]) -> None:
    done = run("--help")

    assert done.exit_code == 0
    assert "python -m benchmarks.serving --case 1x32x64" in done.output
