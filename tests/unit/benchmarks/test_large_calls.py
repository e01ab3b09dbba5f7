"""benchmarks.large_calls: a run against a server in this process, and what it says to failures."""

import json
from pathlib import Path

from typer.testing import CliRunner

from benchmarks.large_calls.cli import app
from tests.integration.served import served
from tests.tiny import TINY


def test_the_stream_is_measured_alone_and_beside_the_call(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.json"
    with served(TINY, max_seq_len=2048, num_kv_blocks=256) as server:
        options = ("--url", server.url, "--prompts", "20", "--stop-strings", "3", "--rounds", "1")

        done = CliRunner().invoke(app, [*options, "--out", str(out)])

    assert done.exit_code == 0, done.output
    figures = json.loads(out.read_text(encoding="utf-8"))["figures"]
    assert set(figures) == {"alone", "beside the call"}
    for gaps in figures.values():
        assert 0 < gaps["p50_s"] <= gaps["p99_s"] <= gaps["longest_s"] <= gaps["during_s"]


def test_a_refused_call_is_a_sentence_with_the_servers_reason() -> None:
    with served(TINY) as server:
        done = CliRunner().invoke(app, ["--url", server.url, "--prompts", "100000"])

    assert done.exit_code == 1
    assert "The server answers with status 400" in done.output
