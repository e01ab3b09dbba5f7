"""The real torch_npu, without CANN or a card: its schemas, its meta kernels, and its absence."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.npu.schemas import SCHEMAS
from tests.npu.torch_npu import TorchNpu
from tests.unit.docs.pages import ROOT, rows

pytestmark = pytest.mark.slow

OPEN = "tests.npu.open_npu"
NPU_PAGE = ROOT / "docs/guides/npu.md"
COSTS = ("launches a layer", "launches a step", "GB a step", "MB exchanged", "ms by bandwidth")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> TorchNpu:
    """The package, and a library in CANN's place."""
    return TorchNpu(tmp_path_factory.mktemp("torch_npu"))


@pytest.fixture(scope="module")
def meta_calls(package: TorchNpu) -> dict[str, Any]:
    """What came of every call of the back end on meta tensors."""
    done = package.run("tests.npu.meta_calls")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_operators_are_those_that_the_other_tests_declare(meta_calls: dict[str, Any]) -> None:
    assert meta_calls["schemas"] == SCHEMAS


def test_every_operator_passes_its_own_meta_kernel(meta_calls: dict[str, Any]) -> None:
    assert set(meta_calls["calls"]) == set(SCHEMAS)
    assert all(meta_calls["calls"].values())


def test_what_a_step_costs_is_what_the_page_shows(meta_calls: dict[str, Any]) -> None:
    shown = {
        name: numbers
        for header, (name, *numbers) in rows(NPU_PAGE)
        if header == ("linear layers", *COSTS)
    }

    assert shown == {
        name: [str(costs[key]) for key in COSTS] for name, costs in meta_calls["costs"].items()
    }


@pytest.mark.parametrize(
    "file", ["tests/unit/engine/npu/test_npu_kernels.py", "tests/integration/test_npu_tokens.py"]
)
def test_through_the_package_results_are_the_same(package: TorchNpu, file: str) -> None:
    done = package.run("tests.npu.pytest_with_torch_npu", "-q", "-m", "not slow", file)

    assert done.returncode == 0, done.stdout


def test_ranks_join_by_the_package_s_own_process_groups(package: TorchNpu) -> None:
    done = package.run("tests.npu.make_hccl")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "classes": {"world": "ProcessGroupHCCL", "tp": "ProcessGroupHCCL"},
        "missing": [],
        "refusal": "The tensor is on cpu; it can be on the npu.",
        "failure": None,
    }


def test_the_package_has_the_graphs_that_are_called(package: TorchNpu) -> None:
    done = package.run("tests.npu.find_graphs")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"missing": []}


def test_with_cann_the_driver_is_missed(package: TorchNpu) -> None:
    done = package.run(OPEN)

    assert done.stdout.splitlines()[-1] == (
        "device npu needs the driver of the cards, whose /dev/davinci_manager is not here; "
        "install it, or give the container the devices of its host"
    )


def test_without_cann_a_library_is_missed(tmp_path: Path) -> None:
    done = TorchNpu(tmp_path, has_cann=False).run(OPEN)

    assert done.stdout.splitlines()[-1] == (
        "device npu needs CANN, of which libhccl.so cannot be loaded; install it and source its "
        "set_env.sh, or take an image that has it"
    )
