"""The commands of docs/guides/programs.md, run as they stand there, against a real server."""

import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.installed import install
from tests.integration.programs import PROGRAMS, READERS, Figures, Program
from tests.integration.served import Served, served
from tests.patience import HANG_S
from tests.tiny import TINY

NUM_REQUESTS = 10
NUM_TOKENS = 16
"""Tokens of each answer, as all of the commands have it."""

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


def run(program: Program, server: Served, commands: Path, folder: Path) -> None:
    """Run a command of the page in a folder of its own."""
    for name, text in program.files.items():
        (folder / name).write_text(here(text, server))
    name, *arguments = (here(word, server) for word in program.command)
    done = subprocess.run(
        [commands / name, *arguments],
        cwd=folder,
        env={**os.environ, "HF_HOME": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_every_program_of_the_page_is_run() -> None:
    assert [each.name for each in PROGRAMS] == [*READERS]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_benchmark_client_runs_unchanged(program: Program, tmp_path: Path) -> None:
    commands = install(tmp_path / "environment", program.requirements, overrides=program.overrides)
    folder = tmp_path / "run"
    folder.mkdir()
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
