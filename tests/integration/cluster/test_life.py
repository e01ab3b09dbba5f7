"""Clusters begin and end: side by side, whole, and without a trace."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster_fixture import skip_without_cluster
from tests.integration.cluster.footprint import Footprint, wait_for
from tools.cluster import AlreadyUp, Cluster, ClusterError, prepare, registry
from tools.cluster.network import Network
from tools.cluster.paths import CHECKOUT

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

INTERRUPTED = 130


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a cluster that is gone after the test, whatever the test did."""
    skip_without_cluster()
    chosen = f"life-{os.getpid()}"
    yield chosen
    registry.end(chosen)


def start(name: str) -> Cluster:
    return Cluster.start(name, owner=os.getpid())


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tools.cluster", *arguments]


def test_two_run_side_by_side_and_one_leaves_nothing_behind(cluster: Cluster, name: str) -> None:
    second = start(name)
    footprint = Footprint.of(second)
    assert footprint.is_complete
    assert second.addresses != cluster.addresses
    assert "node0" in second.kubectl("get", "nodes")

    second.stop()

    assert footprint.left() == []
    assert "node0" in cluster.kubectl("get", "nodes")


def test_the_remains_of_one_do_not_take_the_cable_of_another(cluster: Cluster) -> None:
    """A cluster that ended may have had the same slice; only its record says so."""
    number_of_the_other = 0
    Network(prepare().packages).disconnect(cluster.addresses, number_of_the_other)

    assert "node0" in cluster.kubectl("get", "nodes")


def test_a_name_is_taken_once(cluster: Cluster) -> None:
    with pytest.raises(AlreadyUp, match=f"cluster {cluster.name} is up"):
        Cluster.start(cluster.name)


def test_the_command_says_that_it_is_up_already(cluster: Cluster) -> None:
    done = subprocess.run(
        command("up", "--name", cluster.name),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith(f"Cluster {cluster.name} is up already.")
    assert f"export KUBECONFIG={cluster.kubeconfig}" in done.stdout


def test_what_a_killed_keeper_left_the_next_start_removes(name: str) -> None:
    first = start(name)
    footprint = Footprint.of(first)
    os.kill(first.record.keeper.pid, signal.SIGKILL)
    wait_for(lambda: Cluster.find(name) is None, "the keeper is gone")

    second = start(name)

    without_folder = replace(footprint, folder=Path("/nowhere"), interface=Path("/nowhere"))
    assert without_folder.left() == []
    assert "node0" in second.kubectl("get", "nodes")


def test_a_cluster_whose_supervisor_is_killed_ends_whole(name: str) -> None:
    found = start(name)
    footprint = Footprint.of(found)

    found.run(["kill", "-KILL", "2"])

    wait_for(lambda: footprint.left() == [], "nothing is left")


def test_a_cluster_ends_with_its_owner(name: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as owner:
        found = Cluster.start(name, owner=owner.pid)
        footprint = Footprint.of(found)

        owner.kill()

    wait_for(lambda: footprint.left() == [], "nothing is left")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_start_leaves_nothing(name: str, number: signal.Signals) -> None:
    files = registry.files_of(name)

    with subprocess.Popen(
        command("up", "--name", name), cwd=CHECKOUT, stdout=subprocess.DEVNULL
    ) as starting:
        wait_for((files.logs / "kube-apiserver.log").exists, "the API server starts")
        footprint = Footprint.of(Cluster(name, files))
        starting.send_signal(number)
        code = starting.wait()

    assert code == (INTERRUPTED if number is signal.SIGINT else -number)
    wait_for(lambda: footprint.left() == [], "nothing is left")
    assert footprint.cgroups


def test_a_part_that_fails_is_named_with_its_last_words(name: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_text("no archive")
    prepared = replace(prepare(), images=(broken,))

    with pytest.raises(ClusterError) as caught:
        Cluster.start(name, prepared=prepared, owner=os.getpid())

    sentence = str(caught.value)
    assert f"cluster {name} cannot start: import-broken ended with status 1" in sentence
    assert "tar" in sentence
    assert (
        f"Its logs are in {registry.files_of(name).folder.parents[1] / 'logs' / name}" in sentence
    )
    assert registry.phase_of(name) is None


def test_a_mount_that_cannot_be_made_is_said(name: str, tmp_path: Path) -> None:
    inside_a_folder_shown_read_only = f"{CHECKOUT}/not/there"
    said = re.escape(f"cannot be shown at {inside_a_folder_shown_read_only} on the node")
    with pytest.raises(ClusterError, match=said):
        Cluster.start(name, mounts={tmp_path: inside_a_folder_shown_read_only}, owner=os.getpid())


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ClusterError, match="cluster name 'No/Name': use up to 40 small letters"):
        Cluster.start("No/Name")


def test_ending_what_is_not_there_is_no_error() -> None:
    done = subprocess.run(
        command("down", "--name", "never-was"),
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "There is no cluster never-was.\n")
