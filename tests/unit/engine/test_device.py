"""The interface of a device: backends by name, and memory."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.memory import available_memory
from tandem_engine.device.cpu.runtime import CpuRuntime, processor_name
from tandem_engine.device.registry import open_device
from tandem_engine.device.runtime import DeviceRuntime

GIB = 1 << 30


def test_the_cpu_is_always_there() -> None:
    runtime: DeviceRuntime = open_device("cpu")

    assert runtime.name == "cpu"
    assert runtime.device == torch.device("cpu")


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="device 'tpu' is not one of cpu"):
        open_device("tpu")


@pytest.mark.slow
def test_a_backend_is_imported_only_when_it_is_chosen() -> None:
    code = (
        "import json, sys, tandem_engine.device.registry as registry\n"
        "before = 'tandem_engine.device.cpu.runtime' in sys.modules\n"
        "registry.open_device('cpu')\n"
        "print(json.dumps([before, 'tandem_engine.device.cpu.runtime' in sys.modules]))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert json.loads(out.stdout) == [False, True]


def test_a_given_memory_limit_is_taken_as_it_is() -> None:
    memory = CpuRuntime(memory_bytes=3 * GIB).memory()

    assert memory.total == 3 * GIB
    assert 0 < memory.used < 64 * GIB


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def meminfo(gib: int) -> dict[str, str]:
    return {"proc/meminfo": f"MemTotal: 999 kB\nMemAvailable: {gib * GIB // 1024} kB\n"}


def group(path: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/{path}memory.max": f"{limit}\n",
        f"sys/fs/cgroup/{path}memory.current": f"{used}\n",
        f"sys/fs/cgroup/{path}memory.stat": f"anon 5\ninactive_file {inactive}\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(meminfo(8), 8 * GIB, id="no cgroups: what the machine has"),
        pytest.param(
            meminfo(8) | {"proc/self/cgroup": "0::/a/b\n"} | group("a/b/", str(4 * GIB), GIB),
            3 * GIB,
            id="a cgroup with less left",
        ),
        pytest.param(
            meminfo(8)
            | {"proc/self/cgroup": "0::/a/b\n"}
            | group("a/b/", "max", GIB)
            | group("a/", str(2 * GIB), GIB),
            GIB,
            id="a limit further up counts too",
        ),
        pytest.param(
            meminfo(8)
            | {"proc/self/cgroup": "0::/\n"}
            | group("", str(4 * GIB), 3 * GIB, inactive=2 * GIB),
            3 * GIB,
            id="file pages out of use can be had back",
        ),
        pytest.param(
            meminfo(2) | {"proc/self/cgroup": "0::/\n"} | group("", str(4 * GIB), 0),
            2 * GIB,
            id="the machine has less than the cgroup allows",
        ),
        pytest.param(
            meminfo(8)
            | {"proc/self/cgroup": "0::/not/mounted/here\n"}
            | group("", str(4 * GIB), GIB),
            3 * GIB,
            id="in a container the path is the host's",
        ),
        pytest.param(
            meminfo(8)
            | {
                "proc/self/cgroup": "3:cpu:/x\n2:memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(4 * GIB),
                "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(GIB),
                "sys/fs/cgroup/memory/a/memory.stat": "inactive_file 0\n",
            },
            3 * GIB,
            id="version 1",
        ),
    ],
)
def test_available_memory_is_the_least_of_machine_and_cgroups(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    assert available_memory(write(tmp_path, files)) == expected


def test_the_cpu_says_what_it_is(tmp_path: Path) -> None:
    facts = open_device("cpu", memory_bytes=7).facts()

    assert (facts.device, facts.memory_bytes) == ("cpu", 7)
    assert facts.software.endswith(" kernels")
    assert facts.name
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A Fast One 9000\n")
    assert processor_name(info) == "A Fast One 9000"
    assert processor_name(tmp_path / "none") == platform.machine()
