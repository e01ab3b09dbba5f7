"""A replica of two ranks by `tandem serve`: Ray actors that live and end together."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tandem_serve.processes import session_members
from tests.e2e.harness import Service, Tandem, wait_for, write_manifest
from tests.e2e.test_local_service import set_chunk
from tests.figures import Times
from tests.patience import HANG_S
from tests.ports import free_port
from tests.tiny import held_out

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_REPLICAS: Final = 2
NUM_STREAMS: Final = 12
MANY_TOKENS: Final = 500
NUM_QUESTIONS: Final = 8


def in_two_ranks(document: dict[str, Any]) -> None:
    document["spec"]["engine"]["parallelism"] = {"tp": 2}
    document["spec"]["resources"] = {"cpu": 2, "memory": "2Gi"}


def replicas(count: int) -> Any:
    return lambda document: document["spec"].update(scaling={"minReplicas": count})


@pytest.fixture(scope="module")
def ranks(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two replicas of two ranks each."""
    tandem = Tandem(tmp_path_factory.mktemp("ranks"))
    manifest, port = write_manifest(tandem.home, checkpoint, name="ranks"), free_port()
    found = Service(tandem, "ranks", manifest, port)
    found.write(in_two_ranks)
    found.write(replicas(NUM_REPLICAS))
    command = tandem.start("serve", "-f", str(manifest), "--port", str(port))
    try:
        command.wait_for_output("serves at")
        yield found
        traces, pids = found.traces, rank_pids(found)
        assert command.interrupt() == 130
        traces.assert_gone()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        command.kill()


def rank_pids(service: Service) -> dict[int, str]:
    """Processes of the ranks from 1 on, and the replica that each belongs to."""
    found = {}
    for member in session_members(service.traces.session):
        with suppress(OSError):
            title = Path(f"/proc/{member.pid}/cmdline").read_bytes().rstrip(b"\0 ").decode()
            if named := re.fullmatch(r"ray::ranks (\w+) rank 1", title):
                found[member.pid] = named[1]
    return found


def segments(service: Service) -> set[str]:
    """The memory that ranks share, by inode, as long as any process has it open or mapped."""
    found = set()
    for member in session_members(service.traces.session):
        with suppress(OSError):
            maps = Path(f"/proc/{member.pid}/maps").read_text()
            found |= set(re.findall(r"(\d+) +/memfd:tandem-segment", maps))
    return found


def answer(service: Service, conversation: Any) -> str:
    body = {"model": "tandem-tiny", "messages": conversation.messages, "temperature": 0.0}
    url = f"{service.url}/v1/chat/completions"
    response = httpx.post(url, json=body, timeout=HANG_S, trust_env=False)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


@dataclass
class Stream:
    """Long answers that arrive, one after the other."""

    begun: threading.Event = field(default_factory=threading.Event)
    error: str = ""

    def keep_reading(self, service: Service, is_enough: threading.Event) -> None:
        """Read until an answer fails, or there are enough: until then one is being written."""
        while not (self.error or is_enough.is_set()):
            self.read(service)

    def read(self, service: Service) -> None:
        body = {
            "model": "tandem-tiny",
            "prompt": "What is 12 + 30?",
            "max_tokens": MANY_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        url = f"{service.url}/v1/completions"
        last = ""
        with httpx.stream("POST", url, json=body, timeout=HANG_S, trust_env=False) as response:
            if response.status_code != httpx.codes.OK:
                # It came when its group was ending.
                last = response.read().decode()
            for line in response.iter_lines():
                if line.startswith("data: "):  # not a comment, which keeps a stream alive
                    self.begun.set()
                    last = line.removeprefix("data: ")
        if last != "[DONE]":
            self.error = json.loads(last)["error"]["message"]


@contextmanager
def long_answers(service: Service) -> Iterator[list[Stream]]:
    """Streams, of which each replica gives some, through the whole block, however long it takes."""
    streams, is_enough = [Stream() for _ in range(NUM_STREAMS)], threading.Event()
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        ends = [pool.submit(stream.keep_reading, service, is_enough) for stream in streams]
        try:
            for stream in streams:
                assert stream.begun.wait(HANG_S)
            yield streams
        finally:
            is_enough.set()
        for end in ends:
            end.result()


@pytest.fixture
def times(request: pytest.FixtureRequest) -> Times:
    """Takes times; they are printed when the run ends."""
    return Times.of(request.config, "times of replicas of two ranks")


def test_two_ranks_say_what_one_says(ranks: Service, service: Service) -> None:
    conversations = held_out(NUM_QUESTIONS)

    said = [answer(ranks, one) for one in conversations]

    assert said == [answer(service, one) for one in conversations]


def test_a_live_change_keeps_the_ranks(ranks: Service) -> None:
    before = rank_pids(ranks)
    with long_answers(ranks) as streams:
        ranks.write(set_chunk(64))
        said = ranks.apply()

    assert "live" in said
    assert [stream.error for stream in streams if stream.error] == []
    assert rank_pids(ranks) == before


def test_a_killed_rank_ends_its_group_alone(ranks: Service, times: Times) -> None:
    before, shared = rank_pids(ranks), segments(ranks)
    victim = min(before)
    with (
        times.measure("killed rank → its streams have failed, the others have ended"),
        long_answers(ranks) as streams,
    ):
        os.kill(victim, signal.SIGKILL)

    failed = [stream.error for stream in streams if stream.error]
    assert failed
    assert len(failed) < NUM_STREAMS
    assert all("Rank 1 was ended by SIGKILL" in one for one in failed), failed
    with times.measure("then: two replicas serve"):
        wait_for(lambda: len(rank_pids(ranks).keys() - {victim}) == NUM_REPLICAS, "a new rank")
        wait_for(lambda: "2 of 2" in ranks.tandem.run("status")[1], "a new replica")
    assert set(before) - {victim} < set(rank_pids(ranks))
    assert len(segments(ranks)) == len(shared)


def test_a_replica_that_is_not_needed_any_more_takes_its_ranks_along(ranks: Service) -> None:
    before, shared = rank_pids(ranks), segments(ranks)
    with long_answers(ranks) as streams:
        ranks.write(replicas(1))
        ranks.apply()

    wait_for(lambda: len(rank_pids(ranks)) == 1, "the end of the rank")
    assert rank_pids(ranks).keys() < before.keys()
    assert len(segments(ranks)) == len(shared) / 2
    assert [stream.error for stream in streams if stream.error] == []


def test_a_killed_replica_leaves_no_rank_and_no_memory(ranks: Service, times: Times) -> None:
    (replica,), before, shared = ranks.replica_pids(), rank_pids(ranks), segments(ranks)

    with times.measure("killed replica → its rank and their memory have gone"):
        os.kill(replica, signal.SIGKILL)
        wait_for(lambda: not before.keys() & rank_pids(ranks).keys(), "the end of its rank")
        wait_for(lambda: not shared & segments(ranks), "the end of its memory")
