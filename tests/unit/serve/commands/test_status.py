"""`tandem status`: what it says of a service's KV cache."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem_engine.kvcache.capacity import Capacity
from tandem_engine.kvcache.layout import CacheLayout
from tandem_serve.api.document import DEPLOYMENT
from tandem_serve.api.state import ReplicaState, ServiceState
from tandem_serve.cli import app
from tests.unit.serve.local_services import RECORD

LAYOUT = CacheLayout(num_layers=32, num_kv_heads=8, head_dim=128, dtype="bfloat16", block_size=128)

runner = CliRunner()


def write_log(run_dir: Path, replica_id: str, num_blocks: int) -> None:
    """The last line of a replica's log of its start."""
    capacity = Capacity(num_blocks=num_blocks, block_size=128, max_seq_len=4096)
    folder = run_dir / "session_latest" / "logs" / "serve"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"replica_tiny_{DEPLOYMENT}_{replica_id}.log"
    log.write_text(f"INFO 2026 -- start-up: {capacity.in_words(LAYOUT)}\n")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service that runs with two replicas."""
    replicas = tuple(ReplicaState(replica_id=one, state="RUNNING", pid=None) for one in "ab")
    state = ServiceState(
        status="RUNNING", failure=None, details="", target_replicas=2, replicas=replicas
    )
    record = replace(RECORD, run_dir=str(tmp_path))
    monkeypatch.setattr("tandem_serve.commands.status.read_records", lambda: [record])
    monkeypatch.setattr("tandem_serve.commands.status.state_of", lambda _: state)
    return tmp_path


def test_status_says_how_many_blocks_and_longest_sequences_fit(run_dir: Path) -> None:
    for replica_id in "ab":
        write_log(run_dir, replica_id, num_blocks=512)

    done = runner.invoke(app, ["status"])

    assert done.exit_code == 0
    # 512 blocks of 128 tokens are 65,536 tokens: 16 times 4096.
    assert (
        "2 of 2    http://127.0.0.1:8000  "
        "512 blocks of 128 tokens, room for 16 sequences of 4096 tokens"
    ) in done.stdout
    assert "GiB" not in done.stdout


def test_status_distinguishes_replicas_of_different_sizes(run_dir: Path) -> None:
    write_log(run_dir, "a", num_blocks=512)
    write_log(run_dir, "b", num_blocks=256)

    done = runner.invoke(app, ["status"])

    assert "256 blocks of 128 tokens, room for 8 sequences of 4096 tokens; 512 blocks" in (
        done.stdout
    )
