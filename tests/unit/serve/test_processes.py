"""Processes that cannot be read are none that have ended."""

import errno
import os
from collections.abc import Callable

import pytest

from tandem_serve.pod import drain
from tandem_serve.processes import (
    command_line,
    is_alive,
    read_process,
    wait_until_gone,
)
from tests.descriptors import no_descriptor_left

NO_PROCESS = 1 << 22
"""Above all numbers of processes."""


@pytest.mark.parametrize(
    "read",
    [
        lambda: read_process(os.getpid()),
        lambda: is_alive(os.getpid(), 0),
        lambda: command_line(os.getpid()),
        lambda: wait_until_gone(os.getpid(), 0, timeout_s=0),
        lambda: list(drain.connections_seen_by(os.getpid())),
    ],
    ids=["process", "life", "command", "end", "connections"],
)
def test_nothing_is_said_of_a_process_where_no_file_can_be_opened(
    read: Callable[[], object],
) -> None:
    with no_descriptor_left(), pytest.raises(OSError) as raised:
        read()

    assert raised.value.errno == errno.EMFILE


def test_a_process_that_has_ended_is_none() -> None:
    assert read_process(NO_PROCESS) is None
    assert command_line(NO_PROCESS) == []
    assert list(drain.connections_seen_by(NO_PROCESS)) == []
    assert wait_until_gone(NO_PROCESS, 0, timeout_s=0)


def test_a_pod_goes_on_draining_where_no_file_can_be_opened() -> None:
    me = read_process(os.getpid())
    assert me is not None
    enough = iter([False, True])

    with no_descriptor_left():
        assert drain.wait_for_end(
            [me],
            timeout_s=3600,
            idle_s=0,
            is_busy=drain.has_connections,
            is_enough=lambda: next(enough),
        )
