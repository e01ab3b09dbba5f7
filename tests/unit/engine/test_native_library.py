"""Building, choosing and loading the kernels; and what happens where that fails."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.huge_pages import (
    CHUNK_BYTES,
    HUGE_PAGE,
    HugePages,
    TouchBudget,
    can_collapse,
    zeros_in_huge_pages,
)
from tandem_engine.device.cpu.memory import resident_memory
from tandem_engine.device.cpu.native import build
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import NEEDED_FLAGS, load_library, runnable_variants
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.reference.kernels import ReferenceKernels
from tests.unit.engine.native import native_kernels

ROOT = Path(__file__).parents[3]
COMPILER = """#!/bin/sh
echo "$@" >> {log}
[ "$1" = --version ] && {{ echo "g++ 99"; exit 0; }}
{then}
while [ "$1" != -o ]; do shift; done
echo made > "$2"
"""
HUGE_PAGES_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.fixture
def _no_warning_was_given_yet() -> Iterator[None]:
    load_library.cache_clear()
    yield
    load_library.cache_clear()


class Compiler:
    """A compiler that writes down what it is asked for."""

    def __init__(self, folder: Path, then: str = "") -> None:
        self._log = folder / "log"
        self.path = folder / "compiler"
        self.path.write_text(COMPILER.format(log=self._log, then=then))
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if line != "--version"]


def make(folder: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("CXX", str(compiler.path))
    return build.build(folder / "lib", cache=folder / "cache")


def test_a_build_makes_one_library_a_variant_and_links_no_openmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(tmp_path)

    made = make(tmp_path, compiler, monkeypatch)

    names = [build.library_name(variant, build.sources_hash()) for variant in build.variants()]
    assert [path.name for path in made] == names
    assert all(path.read_text() == "made\n" for path in made)
    links = [call for call in compiler.calls if "-shared" in call]
    assert len(links) == len(names)
    assert not [call for call in links if "openmp" in call or "gomp" in call]


def test_a_second_build_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(tmp_path)
    first = make(tmp_path, compiler, monkeypatch)
    calls = compiler.calls
    for path in first:
        path.unlink()

    second = make(tmp_path, compiler, monkeypatch)

    assert compiler.calls == calls
    assert [path.is_file() for path in second] == [True] * len(first)


def test_libraries_of_other_sources_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "lib" / build.library_name("avx2", "0123456789abcdef")
    old.parent.mkdir()
    old.write_text("old")

    make(tmp_path, Compiler(tmp_path), monkeypatch)

    assert not old.exists()


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")

    made = make(tmp_path, Compiler(tmp_path), monkeypatch)

    assert all(path.is_file() for path in made)
    assert "are not kept in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("then", "reason"),
    [
        pytest.param("echo no such flag >&2; exit 1", "no such flag", id="it refuses"),
        pytest.param("exit 1", "no output", id="it fails without a word"),
    ],
)
def test_a_compiler_that_fails_is_named_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, reason: str
) -> None:
    with pytest.raises(build.BuildFailed, match=reason):
        make(tmp_path, Compiler(tmp_path, then), monkeypatch)


@pytest.mark.parametrize(
    ("machine", "says", "least"),
    [
        pytest.param(
            "x86_64",
            "cc1plus: error: bad value (‘x86-64-v4’) for ‘-march=’ switch",
            11,
            id="g++ 10 on x86",
        ),
        pytest.param(
            "x86_64",
            "g++: error: unrecognized command-line option ‘-mamx-tile’",
            11,
            id="g++ 10 on x86, another flag",
        ),
        pytest.param(
            "aarch64",
            "cc1plus: error: invalid feature modifier ‘bf16’ in ‘-march=armv8.2-a+dotprod+bf16’",
            10,
            id="g++ 9 on Arm",
        ),
    ],
)
def test_a_compiler_that_is_too_old_is_named_with_the_version_that_is_needed(
    tmp_path: Path, machine: str, says: str, least: int
) -> None:
    compiler = Compiler(tmp_path, f'echo "{says}" >&2; echo valid arguments are many >&2; exit 1')

    with pytest.raises(build.BuildFailed) as failed:
        build.build(
            tmp_path, cache=tmp_path / "cache", machine=machine, compiler=str(compiler.path)
        )

    assert str(failed.value) == (
        f"g++ 99 does not know a flag of the kernels ({says}); install g++ {least} or newer, and "
        f"set CXX to it where it is not the default, as in CXX=g++-{least}"
    )


def test_without_a_compiler_the_build_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)

    with pytest.raises(build.BuildFailed, match="there is no compiler 'g\\+\\+'; install g\\+\\+"):
        build.build(tmp_path)


class HookInterface:
    """Hatchling's builder as far as our hook needs it: the path of the source tree."""

    root = str(ROOT)


def test_a_wheel_is_made_without_a_compiler_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interface: Any = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = HookInterface
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["NativeKernels"]
    data: dict[str, Any] = {"force_include": {}}

    hook().initialize("standard", data)

    assert data == {"force_include": {}}
    assert "installed without its kernels" in capsys.readouterr().err


def cpuinfo(folder: Path, flags: str) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor : 0\nflags\t\t: {flags}\nbugs : none\n")
    return path


@pytest.mark.skipif("avx2" not in build.variants(), reason="this is no x86 machine")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param("fpu sse2", ["portable"], id="an old machine"),
        pytest.param(
            "avx2 fma f16c bmi1 bmi2 movbe abm", ["avx2", "portable"], id="one without AVX-512"
        ),
        pytest.param(
            "avx2 fma f16c bmi1 bmi2 movbe abm avx512f avx512bw avx512cd avx512dq avx512vl",
            ["avx2", "portable"],
            id="one whose AVX-512 knows no bfloat16",
        ),
        pytest.param(
            "avx2 fma f16c bmi1 bmi2 movbe abm avx512f avx512bw avx512cd avx512dq avx512vl "
            "avx512_bf16 avx512_vnni",
            ["avx512", "avx2", "portable"],
            id="one with all of it",
        ),
    ],
)
def test_variants_are_those_that_the_cpu_has_the_instructions_for(
    tmp_path: Path, flags: str, expected: list[str]
) -> None:
    assert runnable_variants(cpuinfo(tmp_path, flags)) == expected


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        pytest.param("fp asimd evtstrm aes crc32 cpuid", ["portable"], id="a Cortex-A57"),
        pytest.param(
            "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt "
            "fcma dcpop asimddp asimdfhm",
            ["neon-dotprod", "portable"],
            id="a Kunpeng 920",
        ),
        pytest.param(
            "fp asimd crc32 atomics asimdrdm asimddp bf16",
            ["neon-dotprod", "portable"],
            id="one without products of small matrices of bytes",
        ),
        pytest.param(
            "fp asimd crc32 atomics asimdrdm asimddp sve i8mm bf16",
            ["neon-bf16", "neon-dotprod", "portable"],
            id="one with all of it",
        ),
    ],
)
def test_arm_variants_are_those_that_the_cpu_has_the_instructions_for(
    tmp_path: Path, features: str, expected: list[str]
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nBogoMIPS\t: 200.00\nFeatures\t: {features}\n")

    assert runnable_variants(path, machine="aarch64") == expected


@pytest.mark.skipif("amx" not in build.variants(), reason="this is no x86 machine")
@pytest.mark.parametrize("may_use_tiles", [True, False])
def test_tiles_are_used_where_the_kernel_gives_them(tmp_path: Path, may_use_tiles: bool) -> None:
    flags = cpuinfo(tmp_path, " ".join(frozenset().union(*NEEDED_FLAGS.values())))

    assert runnable_variants(flags, lambda: may_use_tiles) == [
        *(["amx"] if may_use_tiles else []),
        *("avx512", "avx2", "portable"),
    ]


def test_a_cpu_that_tells_nothing_gets_the_portable_variant(tmp_path: Path) -> None:
    assert runnable_variants(tmp_path / "missing") == ["portable"]


@pytest.mark.usefixtures("_no_warning_was_given_yet")
def test_missing_kernels_are_warned_about_once_with_the_way_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert load_library(folder=tmp_path) is None

    (warning,) = caplog.messages
    assert f"Install g++ {build.needed_gcc()} or newer" in warning
    assert "python -m tandem_engine.device.cpu.native.build" in warning


@pytest.mark.usefixtures("_no_warning_was_given_yet")
def test_a_damaged_library_is_warned_about_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / build.library_name("portable", build.sources_hash())).write_bytes(b"no library")

    assert load_library("portable", tmp_path) is None

    assert "do not load" in caplog.text


def test_the_environment_names_the_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_KERNELS", "reference")
    assert isinstance(CpuRuntime().kernels, ReferenceKernels)

    monkeypatch.setenv("TANDEM_KERNELS", "portable")
    native_kernels("portable")
    kernels = CpuRuntime().kernels
    assert isinstance(kernels, NativeKernels)
    assert kernels.library.variant == "portable"


def test_an_unknown_variant_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_KERNELS", "mmx")

    with pytest.raises(ConfigError, match=r"TANDEM_KERNELS is 'mmx'.* auto, .*portable, reference"):
        CpuRuntime()


@pytest.mark.slow
def test_there_is_one_openmp_in_the_process() -> None:
    native_kernels()
    code = (
        "import re, torch\n"
        "from tandem_engine.device.cpu.runtime import CpuRuntime\n"
        "from tandem_engine.device.packing import pack\n"
        "kernels = CpuRuntime().kernels\n"
        "kernels.linear(torch.ones(64, 512), pack(kernels, torch.ones(512, 512)))\n"
        "torch.ones(1000, 1000) @ torch.ones(1000, 1000)\n"
        "maps = open('/proc/self/maps').read()\n"
        r"print(len(set(re.findall(r'/\S*lib(?:gomp|iomp5|omp)[-\w]*\.so\S*', maps))))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TANDEM_KERNELS"}

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout.strip() == "1"


def test_tensors_in_huge_pages_lie_side_by_side_and_apart() -> None:
    pages = HugePages()

    small = [pages.empty(100, torch.bfloat16), pages.empty(7, torch.float32)]
    large = pages.empty(CHUNK_BYTES, torch.bfloat16)

    assert small[0].data_ptr() % HUGE_PAGE == 0
    assert large.data_ptr() % HUGE_PAGE == 0
    assert small[1].data_ptr() - small[0].data_ptr() == 256  # 200 bytes, in whole cache lines
    for number, tensor in enumerate([*small, large]):
        assert not tensor.any()
        tensor.fill_(number + 1)
    assert [float(tensor.float().mean()) for tensor in [*small, large[:1000]]] == [1, 2, 3]


def test_pages_are_joined_when_they_are_written_and_hold_what_they_held() -> None:
    if not can_collapse():
        pytest.skip("this kernel does not join pages (Linux 6.1 does)")
    if "[always]" in HUGE_PAGES_MODE.read_text():
        pytest.skip("this kernel gives huge pages at once")
    pages = HugePages(budget=TouchBudget(0))
    kept, gone = pages.empty(CHUNK_BYTES, torch.uint8), pages.empty(CHUNK_BYTES, torch.uint8)
    unwritten = pages.empty(CHUNK_BYTES, torch.uint8)
    kept.random_(generator=torch.Generator().manual_seed(0))
    gone.fill_(1)
    expected, before = kept.clone(), huge_kib()
    del gone
    resident = resident_memory()

    while pages.collapse_next():
        pass

    assert huge_kib() - before > CHUNK_BYTES / 2**11  # half of it; the kernel need not find all
    assert torch.equal(kept, expected)
    assert (
        resident_memory() - resident < CHUNK_BYTES / 2
    )  # pages that were not written take up nothing
    assert not unwritten.any()


def test_memory_that_is_let_go_is_not_kept_to_join_its_pages() -> None:
    pages = HugePages(budget=TouchBudget(0))
    large = pages.empty(2 * CHUNK_BYTES, torch.uint8)
    large.fill_(1)
    pages.empty(1, torch.uint8)
    before = resident_memory()

    del large

    assert before - resident_memory() > CHUNK_BYTES


def huge_kib() -> int:
    """KiB of this process that lie in huge pages."""
    found = re.search(r"AnonHugePages:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())
    return int(found[1]) if found else 0


def test_large_tensors_lie_in_huge_pages_where_the_kernel_gives_them() -> None:
    if not HUGE_PAGES_MODE.exists() or "[never]" in HUGE_PAGES_MODE.read_text():
        pytest.skip("the kernel gives no huge pages")
    before = huge_kib()

    tensor = zeros_in_huge_pages((64, 1 << 20), torch.uint8)
    tensor.fill_(1)

    assert huge_kib() - before > 32 << 10  # of 64 MiB; the kernel need not find all


class Clock:
    """A thread's time, by which each page takes as long as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def passing(self, seconds: float) -> Callable[[], None]:
        def work() -> None:
            self.now += seconds

        return work


def test_patience_lasts_as_long_as_pages_take_no_longer_than_usual() -> None:
    clock = Clock()
    budget = TouchBudget(0.010, usual=0.001, clock=clock)

    for _ in range(1000):
        budget.spend(clock.passing(0.001))

    assert budget.is_left


def test_patience_ends_when_pages_have_taken_that_much_longer() -> None:
    clock = Clock()
    budget = TouchBudget(0.010, usual=0.001, clock=clock)
    num_pages = 0

    while budget.is_left:
        budget.spend(clock.passing(0.005))
        num_pages += 1

    assert num_pages == 3  # 4 ms too much for each


def test_pages_are_huge_from_the_start_while_patience_lasts_and_small_from_then_on() -> None:
    if not can_collapse():
        pytest.skip("this kernel does not join pages (Linux 6.1 does)")
    if "[madvise]" not in HUGE_PAGES_MODE.read_text():
        pytest.skip("this kernel gives huge pages at once, or not at all")
    clock = Clock()
    budget = TouchBudget(1.0, usual=0.0, clock=clock)
    pages = HugePages(budget=budget)
    before = huge_kib()

    patient = pages.empty(CHUNK_BYTES // 2, torch.uint8)
    while_patient = huge_kib() - before
    budget.spend(clock.passing(1.0))
    hasty = pages.empty(CHUNK_BYTES // 2, torch.uint8)
    hasty.fill_(1)

    assert while_patient > CHUNK_BYTES / 2**12  # half of them; the kernel need not find all
    assert huge_kib() - before == while_patient
    assert not patient.any()
    assert hasty.all()


def test_what_was_not_requested_takes_no_memory() -> None:
    pages = HugePages(budget=TouchBudget())
    pages.empty(1, torch.uint8)
    before = resident_memory()

    pages.empty(1, torch.uint8)

    assert resident_memory() - before < CHUNK_BYTES / 2
