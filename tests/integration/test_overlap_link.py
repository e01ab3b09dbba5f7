"""The link of benchmarks.overlap: two namespaces, a rate, and nothing left behind."""

import json
import os
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from benchmarks.overlap.cases import Work, cut_by
from benchmarks.overlap.errors import LinkError
from benchmarks.overlap.link import LOOPBACK, enter, shaped_link
from benchmarks.overlap.pair import RankPair
from benchmarks.overlap.processes import receive, started
from tests.unit.engine.native import native_kernels

NAMESPACES = Path("/run/netns")
FAST = 4e9


def own_namespaces() -> list[str]:
    return sorted(path.name for path in NAMESPACES.glob(f"tandem-overlap-{os.getpid()}-*"))


@pytest.fixture(autouse=True)
def _can_be_made() -> None:
    try:
        with shaped_link():
            pass
    except LinkError as error:
        pytest.skip(f"there can be no link: {error}")


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tell_interfaces(namespace: str, connection: Connection) -> None:
    enter(namespace)
    connection.send(run("ip", "-o", "addr", "show"))


def test_nothing_is_left_of_a_link_that_fails() -> None:
    def fail() -> None:
        with shaped_link():
            assert len(own_namespaces()) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert own_namespaces() == []


def test_what_a_dead_benchmark_has_left_is_removed() -> None:
    ended = run("sh", "-c", "echo $$").strip()
    name = f"tandem-overlap-{ended}-0"
    run("ip", "netns", "add", name)

    with shaped_link():
        assert not (NAMESPACES / name).exists()


def test_a_process_sees_its_own_end_alone() -> None:
    with shaped_link() as link:
        namespace = link.ends[1].namespace
        with started(tell_interfaces, namespace, name="looks", end_s=5.0) as process:
            told = receive(process)

    assert link.ends[1].address in told
    assert link.ends[0].address not in told
    assert LOOPBACK in told


def test_the_rate_of_both_ends_changes_in_place() -> None:
    with shaped_link() as link:
        for rate, shown in ((80e6, "rate 80Mbit"), (2.5e9, "rate 2500Mbit")):
            link.set_rate(rate)
            for end in link.ends:
                told = run("tc", "-n", str(end.namespace), "qdisc", "show", "dev", "veth0")
                assert shown in told


@pytest.mark.slow
def test_two_ranks_compute_whole_and_cut_steps_over_it() -> None:
    native_kernels()
    work = Work(num_tokens=64, num_prompts=2, num_layers=2)
    with shaped_link() as link, RankPair.opened(link.ends) as pair:
        link.set_rate(FAST)
        pair.build(work.num_layers, work.num_tokens)
        prices = cut_by(work, compute_s=0.0, in_many_s=None)
        whole, halves = (pair.compute(work, cut_by=cut) for cut in (None, prices))
        sent = run("ip", "-j", "-s", "-n", str(link.ends[0].namespace), "link", "show", "veth0")

    assert (whole.is_cut, halves.is_cut) == (False, True)
    assert halves.overlap.communication_s > 0
    (interface,) = json.loads(sent)
    assert interface["stats64"]["tx"]["bytes"] > 2 * work.link_bytes
