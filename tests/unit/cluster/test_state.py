"""Records of a cluster are read back as they were written."""

from pathlib import Path

from tools.cluster.addresses import Slice
from tools.cluster.state import (
    Identity,
    MachineStatus,
    Mount,
    Order,
    PartStatus,
    Phase,
    Record,
    write_atomically,
)

ORDER = Order(
    name="tiny",
    folder="/c/running/tiny",
    programs="/c/running/tiny/bin",
    packages="/c/packages/1",
    images=("/c/images/base.tar",),
    live=("/checkout",),
    mounts=(Mount("/models", "/models/tiny"),),
    owner=7,
)
RECORD = Record(
    name="tiny",
    keeper=Identity(pid=7, started=99),
    init=Identity(pid=8, started=100),
    cgroups=("/sys/fs/cgroup/cpu/tandem-tiny-7",),
    slice=3,
    interface=21,
)
STATUS = MachineStatus(
    phase=Phase.READY,
    parts={"etcd": PartStatus(pid=3, state="running", resident_bytes=4096)},
)


def test_an_order_comes_back_as_it_was() -> None:
    assert Order.from_json(ORDER.to_json()) == ORDER


def test_a_record_comes_back_as_it_was() -> None:
    assert Record.from_json(RECORD.to_json()) == RECORD
    assert RECORD.addresses == Slice(3)


def test_a_record_of_a_cluster_that_only_just_began_comes_back_too() -> None:
    early = Record(name="tiny", keeper=Identity(pid=7, started=99))

    assert Record.from_json(early.to_json()) == early
    assert early.addresses is None


def test_a_status_comes_back_as_it_was() -> None:
    assert MachineStatus.from_json(STATUS.to_json()) == STATUS


def test_a_part_runs_until_it_has_exited() -> None:
    states = ("running", "paused", "exited with signal SIGKILL")

    assert [PartStatus(pid=1, state=state).runs for state in states] == [True, True, False]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "record.json"

    for text in ("long ago", "now"):
        write_atomically(file, text)

    assert file.read_text() == "now"
    assert list(tmp_path.iterdir()) == [file]
