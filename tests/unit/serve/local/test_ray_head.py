"""Ray's head on this machine: what it is started with."""

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from tandem_serve.errors import ServeError
from tandem_serve.local import ray_head
from tandem_serve.local.ports import free_ports
from tandem_serve.pod import haproxy


def test_ray_starts_haproxy_through_tandem_s_command(tmp_path: Path) -> None:
    environment = ray_head._environment(tmp_path, free_ports(), "a token")

    command = Path(environment[haproxy.BINARY])
    assert command.name == haproxy.COMMAND
    assert os.access(command, os.X_OK)


def test_an_installation_without_the_command_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ServeError, match=f"Cannot find tandem-haproxy.* beside {tmp_path}/python"):
        ray_head._environment(tmp_path, free_ports(), "a token")
