"""The native kernels on aarch64, as `make check-arm` runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tandem_engine.device.cpu.native import build
from tools import check_arm


def test_a_machine_without_the_tools_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / check_arm.EMULATOR).write_text("#!/bin/sh\n")
    (tmp_path / check_arm.EMULATOR).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SystemExit) as ended:
        check_arm.main([])

    assert ended.value.code == (
        "The kernels cannot be checked for Arm without aarch64-linux-gnu-g++; install what is "
        "missing (Debian: apt-get install g++-aarch64-linux-gnu qemu-user); until then `make "
        "test-all` skips this check."
    )


def test_every_variant_has_a_cpu_to_run_on() -> None:
    assert list(check_arm.CPUS) == list(build.variants(check_arm.MACHINE))


@pytest.mark.slow
@pytest.mark.skipif(
    check_arm.obstacle() is not None, reason=check_arm.obstacle() or "nothing is missing"
)
def test_every_variant_gives_right_results() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.check_arm"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for variant in check_arm.CPUS:
        assert f"{variant}: kernels" in done.stdout
