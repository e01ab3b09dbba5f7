"""Records of local services: private, unique, and cleared away when their service is dead."""

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tandem_serve.errors import ServeError
from tandem_serve.local.ports import Ports, free_ports, is_free
from tandem_serve.local.records import (
    Record,
    RecordExists,
    create_record,
    find_record,
    read_records,
    record_path,
    records_dir,
    replace_record,
)
from tandem_serve.local.services import choose
from tandem_serve.processes import is_alive, read_process, wait_until_gone
from tests.patience import HANG_S


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def record(tmp_path: Path) -> Record:
    me = read_process(os.getpid())
    assert me is not None
    return Record(
        name="tiny",
        pid=me.pid,
        started=me.started,
        run_dir=str(tmp_path / "tandem-run"),
        host="127.0.0.1",
        port=8000,
        base_port=20000,
        token="secret",  # noqa: S106
        service={},
    )


def dead(record: Record) -> Record:
    """The record of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return replace(record, pid=process.pid, started=1)


def test_a_record_is_read_back(record: Record) -> None:
    create_record(record)

    assert read_records() == [record]
    assert find_record("tiny") == record
    assert find_record("other") is None


def test_a_record_is_for_this_user_alone(record: Record) -> None:
    create_record(record)

    assert stat.S_IMODE(record_path("tiny").stat().st_mode) == 0o600
    assert stat.S_IMODE(records_dir().stat().st_mode) == 0o700


def test_a_second_record_of_a_name_is_refused(record: Record) -> None:
    create_record(record)

    with pytest.raises(RecordExists):
        create_record(replace(record, port=9000))
    assert find_record("tiny") == record
    assert len(list(records_dir().iterdir())) == 1


def test_a_record_can_be_replaced(record: Record) -> None:
    create_record(record)

    replace_record(replace(record, port=9000))

    assert read_records() == [replace(record, port=9000)]


def test_what_a_dead_service_left_is_cleared_away(record: Record) -> None:
    run_dir = Path(record.run_dir)
    run_dir.mkdir()
    create_record(dead(record))

    assert read_records() == []
    assert not run_dir.exists()
    assert not record_path("tiny").exists()


def test_processes_of_a_killed_supervisor_are_ended(record: Record) -> None:
    # A session whose leader has ended, and one member of it.
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()']).pid)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        member = read_process(int(leader.stdout.readline()))
        leader.wait()
        assert member is not None
        assert is_alive(member.pid, member.started)
        create_record(replace(record, pid=leader.pid, started=1))

        assert read_records() == []
        leader.stdout.read()

    # The signal was sent; when its receiver is gone is up to the kernel.
    assert wait_until_gone(member.pid, member.started, timeout_s=HANG_S)


def test_a_file_that_is_no_record_is_removed(record: Record) -> None:
    record_path("bad").write_text("{}")
    create_record(record)

    assert read_records() == [record]
    assert not record_path("bad").exists()


def test_a_server_that_listens_everywhere_is_reached_on_loopback(record: Record) -> None:
    assert replace(record, host="0.0.0.0").url == "http://127.0.0.1:8000"


def test_the_only_service_needs_no_name(record: Record) -> None:
    create_record(record)

    assert choose(None) == record
    with pytest.raises(ServeError, match="No service 'other' runs here; running: tiny"):
        choose("other")


def test_one_of_several_must_be_named(record: Record) -> None:
    create_record(record)
    create_record(replace(record, name="other"))

    with pytest.raises(ServeError, match="other, tiny; name one"):
        choose(None)
    assert choose("tiny") == record


def test_all_ports_of_a_ray_differ() -> None:
    ports = Ports(20000)
    flags = [int(flag.partition("=")[2]) for flag in ports.head_flags()]
    ranges = ports.environment()
    singles = [int(port) for name, port in ranges.items() if "INGRESS" not in name]

    assert len(set(flags + singles)) == len(flags + singles)
    assert max(flags + singles) < int(ranges["RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT"])
    assert int(ranges["RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT"]) < int(
        ranges["RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT"]
    )


def test_free_ports_are_free() -> None:
    ports = free_ports()

    assert is_free("127.0.0.1", ports.gcs)
    assert is_free("127.0.0.1", ports.dashboard)
