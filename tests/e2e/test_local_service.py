"""`tandem serve` and its sisters, with a real Ray, as a user meets them."""

import json
import shutil
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.harness import (
    Service,
    Tandem,
    Traces,
    wait_for,
    write_manifest,
)
from tests.patience import HANG_S
from tests.ports import free_port

pytestmark = pytest.mark.e2e

# Ray's head alone has more; with so many, start-up is in its middle.
MIDDLE_OF_START = 4


def traces_of(tandem: Tandem, name: str = "tiny") -> Traces:
    record = tandem.record(name)
    assert record is not None
    return Traces(record["pid"], Path(record["run_dir"]))


def set_chunk(tokens: int) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        document["spec"]["engine"]["schedule"]["splitFuse"]["splitChunkTokens"] = tokens

    return change


class StreamingClients:
    """Clients that stream one completion after the other until they are told to stop."""

    CLIENTS = 3
    """They leave cores for the command that makes the change: eight made it wait 20 s longer."""
    MAX_TOKENS = 100

    def __init__(self, service: Service) -> None:
        self._url = f"{service.url}/v1/completions"
        self._enough = threading.Event()
        self.num_ended = 0

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(self.CLIENTS)
        self._clients = [self._pool.submit(self._ask_on) for _ in range(self.CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._pool.shutdown()

    def token_counts(self) -> list[int]:
        """Output tokens of every completion, once the clients have stopped."""
        return [count for client in self._clients for count in client.result()]

    def _ask_on(self) -> list[int]:
        counts = []
        while not self._enough.is_set():
            counts.append(self._ask())
            self.num_ended += 1
        return counts

    def _ask(self) -> int:
        """Output tokens of one completion, as the service counted them."""
        body = {
            "model": "tandem-tiny",
            "prompt": "What is 12 + 30?",
            "max_tokens": self.MAX_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with httpx.stream(
            "POST", self._url, json=body, timeout=HANG_S, trust_env=False
        ) as response:
            assert response.status_code == 200, response.read()
            *_, usage, end = (line for line in response.iter_lines() if line)
        assert end == "data: [DONE]"
        count: int = json.loads(usage.removeprefix("data: "))["usage"]["completion_tokens"]
        return count


def test_a_service_answers(service: Service) -> None:
    assert service.get("/health").status_code == 200
    (model,) = service.get("/v1/models").json()["data"]
    assert model["id"] == "tandem-tiny"
    assert model["max_model_len"] == 1024


def test_chat_prints_an_answer(service: Service) -> None:
    code, said = service.tandem.run("chat", "-m", "47+38=?", "--temperature", "0")

    assert code == 0, said
    assert said.strip() == "85"


def test_status_shows_the_service(service: Service) -> None:
    code, said = service.tandem.run("status")

    assert code == 0
    for words in ("tiny", "RUNNING", "1 of 1", service.url, "blocks of 16 tokens"):
        assert words in said


def test_a_second_start_of_the_same_service_is_refused(service: Service) -> None:
    code, said = service.tandem.run("serve", "-f", str(service.manifest), "--port", "1")

    assert code == 1
    assert said == (
        f"error: The service tiny is already running at {service.url}; update it with tandem "
        "apply, or stop it with tandem stop tiny.\n"
    )


def test_a_detached_start_of_the_same_service_applies(service: Service) -> None:
    code, said = service.tandem.run("serve", "-f", str(service.manifest), "--detach")

    assert code == 0
    assert said == f"tiny is up to date, at {service.url}\n"


def test_a_live_change_keeps_replicas_and_requests(service: Service) -> None:
    before = service.replica_pids()
    with StreamingClients(service) as load:
        wait_for(lambda: load.num_ended > 0, "the first completion")
        service.write(set_chunk(64))

        said = service.apply()

        ended = load.num_ended
        wait_for(
            lambda: load.num_ended > ended + StreamingClients.CLIENTS,
            "completions after the change",
        )
        service.write(set_chunk(256))
        service.apply()

    assert "splitFuse.splitChunkTokens" in said
    assert "live" in said
    assert set(load.token_counts()) == {StreamingClients.MAX_TOKENS}
    assert service.replica_pids() == before


def test_a_rewrite_of_a_setting_is_in_the_replicas_log(service: Service) -> None:
    manifest = service.manifest.read_text()
    service.write(lambda it: it["spec"]["engine"]["schedule"].update(maxPrefillTokens=32))
    try:
        service.apply()
    finally:
        service.manifest.write_text(manifest)

    sentence = "-- maxBatchSize 64 is lowered to maxPrefillTokens 32"
    # Replicas that were replaced before have left theirs.
    logs = "session_latest/logs/serve/replica_tiny_replica_*.log"
    wait_for(
        lambda: any(sentence in log.read_text() for log in service.traces.run_dir.glob(logs)),
        "the sentence in the log",
    )
    service.apply()


@pytest.mark.slow
def test_a_checkpoint_that_fails_leaves_the_service_as_it_was(
    service: Service, checkpoint: Path, tmp_path: Path
) -> None:
    before, manifest = service.replica_pids(), service.manifest.read_text()
    broken = without_a_norm(checkpoint, tmp_path)
    service.write(lambda it: it["spec"]["model"].update(source=f"file://{broken}"))

    code, said = service.tandem.run("apply", "-f", str(service.manifest))
    service.manifest.write_text(manifest)

    assert code == 1
    assert "replace" in said
    assert f"error: {broken}/model.safetensors lacks the tensor model.norm.weight" in said
    assert said.endswith("; the service runs as before.\n")
    assert service.replica_pids() == before
    assert service.get("/health").status_code == 200


@pytest.mark.slow
def test_a_service_lives_detached_and_ends_with_stop(tandem: Tandem, checkpoint: Path) -> None:
    manifest, port = write_manifest(tandem.home, checkpoint, name="other"), free_port()
    service = Service(tandem, "other", manifest, port)

    code, said = tandem.run("serve", "-f", str(manifest), "--port", str(port), "--detach")
    try:
        assert code == 0, said
        assert f"other serves at {service.url}" in said
        traces = service.traces
        service.write(lambda it: it["spec"].update(scaling={"minReplicas": 2}))
        assert "in place" in service.apply()
        assert len(service.replica_pids()) == 2
        assert "2 of 2" in tandem.run("status")[1]
    finally:
        code, said = tandem.run("stop", "other")

    assert (code, said) == (0, "other stopped.\n")
    traces.assert_gone()
    assert tandem.record("other") is None


@pytest.mark.slow
def test_ctrl_c_ends_a_service_that_serves(tandem: Tandem, checkpoint: Path) -> None:
    manifest = write_manifest(tandem.home, checkpoint)
    command = tandem.start("serve", "-f", str(manifest), "--port", str(free_port()))
    try:
        command.wait_for_output("serves at")
        traces = traces_of(tandem)

        code = command.interrupt()
    finally:
        command.kill()

    assert code == 130
    traces.assert_gone()
    assert tandem.record("tiny") is None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_start_that_was_broken_off(
    tandem: Tandem, checkpoint: Path, number: signal.Signals
) -> None:
    manifest = write_manifest(tandem.home, checkpoint)
    command = tandem.start("serve", "-f", str(manifest), "--port", str(free_port()))
    try:
        wait_for(lambda: tandem.record("tiny") is not None, "a record")
        traces = traces_of(tandem)
        wait_for(lambda: len(traces.processes()) >= MIDDLE_OF_START, "processes of Ray")

        command.process.send_signal(number)
        command.wait()
    finally:
        command.kill()

    wait_for(lambda: tandem.record("tiny") is None, "the end of the supervisor")
    wait_for(lambda: not traces.processes(), "the end of all processes")
    traces.assert_gone()


def truncated(checkpoint: Path, folder: Path) -> Path:
    """A copy of a checkpoint whose weights end in the middle."""
    copy = folder / "truncated"
    shutil.copytree(checkpoint, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    return copy


def without_a_norm(checkpoint: Path, folder: Path) -> Path:
    """A copy of a checkpoint that only loading its weights finds damaged."""
    copy = folder / "without-a-norm"
    shutil.copytree(checkpoint, copy)
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, copy / "model.safetensors")
    return copy


@pytest.mark.slow
def test_a_truncated_checkpoint_is_reported_in_one_sentence(
    tandem: Tandem, checkpoint: Path, tmp_path: Path
) -> None:
    broken = truncated(checkpoint, tmp_path)
    manifest = write_manifest(tandem.home, broken)

    code, said = tandem.run("serve", "-f", str(manifest), "--port", str(free_port()))

    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert code == 1
    assert len(errors) == 1
    assert f"{broken}/model.safetensors is cut off" in errors[0]
    assert "Traceback" not in said
    assert tandem.record("tiny") is None
