"""The commands of docs/guides/programs.md, run as they stand there, against a real server."""

import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.installed import install
from tests.integration.programs import CLIENTS, FRAMEWORKS, PROGRAMS, READERS, Figures, Program
from tests.integration.served import Served, served
from tests.patience import HANG_S
from tests.tiny import TINY

NUM_REQUESTS = 10
NUM_TOKENS = 16
"""Tokens of each answer, as all of the commands have it."""
PRINTED = {
    "ask_litellm.py": ["85", "85", "too long"],
    "ask_langchain.py": ["85", "85", "too long"],
    "ask_llamaindex.py": ["85", "85"],
}
"""Script of the page → its lines; litellm prints others besides."""

pytestmark = pytest.mark.slow


def here(text: str, server: Served) -> str:
    """Return a text of the page with the address and the model's folder of this run."""
    address = urlsplit(server.url)
    return (
        text.replace("localhost:8000", address.netloc)
        .replace('host_ip="localhost"', f'host_ip="{address.hostname}"')
        .replace("host_port=8000", f"host_port={address.port}")
        .replace("examples/tandem-tiny", str(TINY))
    )


def figures_of(server: Served) -> Figures:
    """Return what the service itself says of all its requests."""
    text = httpx.get(f"{server.url}/metrics", timeout=HANG_S).text
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    ttft, tpot = (
        1e3 * values[f"tandem_{name}_seconds_sum"] / values[f"tandem_{name}_seconds_count"]
        for name in ("time_to_first_token", "time_per_output_token")
    )
    return Figures(
        num_requests=int(values["tandem_request_success_total"]),
        num_tokens=int(values["tandem_generation_tokens_total"]),
        ttft_ms=ttft,
        tpot_ms=tpot,
    )


def run(program: Program, server: Served, commands: Path, folder: Path) -> str:
    """Run a command of the page in a folder; return what it prints."""
    folder.mkdir()
    for name, text in program.files.items():
        (folder / name).write_text(here(text, server))
    name, *arguments = (here(word, server) for word in program.command)
    done = subprocess.run(
        [commands / name, *arguments],
        cwd=folder,
        env={**os.environ, "HF_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_every_program_of_the_page_is_run() -> None:
    assert [each.name for each in CLIENTS] == [*READERS]
    assert len(FRAMEWORKS) == len(PROGRAMS) - len(CLIENTS) > 0


@pytest.mark.parametrize("program", CLIENTS, ids=lambda program: program.name)
def test_a_benchmark_client_runs_unchanged(program: Program, tmp_path: Path) -> None:
    commands = install(tmp_path / "environment", program.requirements, overrides=program.overrides)
    folder = tmp_path / "run"
    with served(TINY) as server:
        run(program, server, commands, folder)
        ours = figures_of(server)

    theirs = program.figures(folder)
    print(f"{program.name}\n  it says:  {theirs}\n  we say:   {ours}")  # noqa: T201
    assert theirs.num_requests == NUM_REQUESTS
    assert theirs.num_tokens == NUM_REQUESTS * NUM_TOKENS
    # Some send a request or two first that they do not count.
    assert ours.num_requests >= NUM_REQUESTS
    assert ours.num_tokens == ours.num_requests * NUM_TOKENS
    assert theirs.ttft_ms > 0
    assert theirs.tpot_ms > 0


@pytest.mark.parametrize("program", FRAMEWORKS, ids=lambda program: program.command[1])
def test_a_framework_asks_and_knows_a_prompt_that_is_too_long(
    program: Program, tmp_path: Path
) -> None:
    commands = install(tmp_path / "environment", program.requirements)
    with served(TINY) as server:
        lines = run(program, server, commands, tmp_path / "run").splitlines()

    expected = PRINTED[program.command[1]]
    assert [line for line in lines if line in expected] == expected
