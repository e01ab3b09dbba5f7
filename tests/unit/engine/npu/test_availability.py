"""A device that cannot be used says what is missing first, and what to do."""

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.npu.availability import (
    VISIBLE_VARIABLE,
    Facts,
    installed_software,
    missing,
    read_facts,
)
from tandem_engine.device.registry import open_device

WHOLE = Facts(
    package="2.13.0",
    torch="2.13.0+cpu",
    import_error=None,
    has_driver=True,
    num_cards=8,
    visible=None,
    num_usable=8,
)


def test_nothing_is_missing_where_a_card_can_be_used() -> None:
    assert missing(WHOLE) is None
    assert missing(replace(WHOLE, package="2.13.0.post1")) is None


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        pytest.param(
            replace(WHOLE, package=None),
            "device npu needs the package torch_npu, which is not installed; install tandem[npu], "
            "or choose device cpu",
            id="package",
        ),
        pytest.param(
            replace(WHOLE, package="2.12.0"),
            "device npu needs the torch_npu of the installed torch: torch is 2.13.0+cpu, "
            "torch_npu 2.12.0; install torch_npu==2.13.0",
            id="another torch",
        ),
        pytest.param(
            replace(
                WHOLE,
                import_error="libhccl.so: cannot open shared object file: No such file",
            ),
            "device npu needs CANN, of which libhccl.so cannot be loaded; install it and source "
            "its set_env.sh, or take an image that has it",
            id="CANN",
        ),
        pytest.param(
            replace(WHOLE, import_error="Failed to load the backend extension\nmore"),
            "device npu cannot be used, as importing torch_npu failed: "
            "Failed to load the backend extension",
            id="anything else",
        ),
        pytest.param(
            replace(WHOLE, has_driver=False, num_usable=0),
            "device npu needs the driver of the cards, whose /dev/davinci_manager is not here; "
            "install it, or give the container the devices of its host",
            id="driver",
        ),
        pytest.param(
            replace(WHOLE, num_cards=0, num_usable=0),
            "device npu needs a card, and there is no /dev/davinci0 or other; ask for one in "
            "resources.npu, or give the container the devices of its host",
            id="card",
        ),
        pytest.param(
            replace(WHOLE, num_usable=0, visible=""),
            "device npu needs a card that this process may use: 8 are here, and "
            "ASCEND_RT_VISIBLE_DEVICES= leaves none; see npu-smi info",
            id="hidden",
        ),
        pytest.param(
            replace(WHOLE, num_usable=0),
            "device npu needs a card that this process may use: 8 are here, and the driver leaves "
            "none; see npu-smi info",
            id="broken",
        ),
    ],
)
def test_one_sentence_says_what_is_missing(facts: Facts, sentence: str) -> None:
    assert missing(facts) == sentence


def test_without_the_package_the_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs the package torch_npu, which is not installed"):
        open_device("npu")


def test_device_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("davinci_manager", "davinci0", "davinci11", "davinci_x", "null"):
        (tmp_path / name).touch()
    monkeypatch.setenv(VISIBLE_VARIABLE, "0,1")

    facts = read_facts(tmp_path)

    assert (facts.has_driver, facts.num_cards, facts.visible) == (True, 2, "0,1")


def test_the_software_of_a_card_is_told_as_far_as_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"CANN": "8.2.RC1", "DRIVER": ""}
    utils = SimpleNamespace(get_cann_version=versions.__getitem__)
    package = ModuleType("torch_npu")
    package.__spec__ = ModuleSpec("torch_npu", None)
    monkeypatch.setitem(sys.modules, "torch_npu", package)
    monkeypatch.setitem(sys.modules, "torch_npu.npu", ModuleType("torch_npu.npu"))
    monkeypatch.setitem(sys.modules, "torch_npu.npu.utils", utils)

    assert installed_software() == "CANN 8.2.RC1"
