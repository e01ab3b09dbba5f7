"""Whether this process can compute on an NPU, and the sentence that says what is missing."""

import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

from tandem_engine.api.errors import ConfigError

VISIBLE_VARIABLE: Final = "ASCEND_RT_VISIBLE_DEVICES"
"""Numbers of the cards that a process may use; unset: all. The device plugin or Ray sets it."""

_DEVICES: Final = Path("/dev")
_MANAGER: Final = "davinci_manager"
_CARD: Final = re.compile(r"davinci\d+")
_LIBRARY: Final = re.compile(r"\b(lib[\w+-]+\.so[\w.]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """State of this machine, as far as an NPU needs it."""

    package: str | None
    """Version of torch_npu; None: it is not installed."""
    torch: str
    """Version of torch."""
    import_error: str | None
    """Message of the error that the import ended with; None: it did not."""
    has_driver: bool
    """True if the driver's device file is there."""
    num_cards: int
    """Device files of cards."""
    visible: str | None
    """Value of ASCEND_RT_VISIBLE_DEVICES; None: unset."""
    num_usable: int
    """Cards that torch counts."""


def missing(facts: Facts) -> str | None:
    """Return one sentence that says what is missing first, and what to do; None: nothing is."""
    return next(_all_missing(facts), None)


def _all_missing(facts: Facts) -> Iterator[str]:
    if facts.package is None:
        yield (
            "device npu needs the package torch_npu, which is not installed; "
            "install tandem[npu], or choose device cpu"
        )
    elif _release(facts.package) != _release(facts.torch):
        yield (
            f"device npu needs the torch_npu of the installed torch: torch is {facts.torch}, "
            f"torch_npu {facts.package}; install torch_npu=={_release(facts.torch)}"
        )
    if facts.import_error is not None:
        yield _import_sentence(facts.import_error)
    if not facts.has_driver:
        yield (
            f"device npu needs the driver of the cards, whose {_DEVICES / _MANAGER} is not here; "
            "install it, or give the container the devices of its host"
        )
    if not facts.num_cards:
        yield (
            f"device npu needs a card, and there is no {_DEVICES}/davinci0 or other; "
            "ask for one in resources.npu, or give the container the devices of its host"
        )
    if not facts.num_usable:
        hidden = (
            f"{VISIBLE_VARIABLE}={facts.visible}" if facts.visible is not None else "the driver"
        )
        yield (
            f"device npu needs a card that this process may use: {facts.num_cards} are here, and "
            f"{hidden} leaves none; see npu-smi info"
        )


def installed_software() -> str:
    """Versions of driver, CANN and torch_npu, as far as they can be told."""
    tell = importlib.import_module("torch_npu.npu.utils").get_cann_version
    versions = {"driver": tell("DRIVER"), "CANN": tell("CANN"), "torch_npu": _package_version()}
    return ", ".join(f"{name} {number}" for name, number in versions.items() if number)


def require_npu() -> Facts:
    """Import torch_npu, make sure that there is a card, and return what was found.

    Raises:
        ConfigError: Something is missing.
    """
    facts = read_facts()
    if sentence := missing(facts):
        raise ConfigError(sentence)
    return facts


def read_facts(devices: Path = _DEVICES) -> Facts:
    """Read them; imports torch_npu where it is installed and fits torch.

    Args:
        devices: The folder of device files.
    """
    package = _package_version()
    fits = package is not None and _release(package) == _release(torch.__version__)
    import_error = _import_error() if fits else None
    names = [path.name for path in devices.glob("davinci*")]
    return Facts(
        package=package,
        torch=torch.__version__,
        import_error=import_error,
        has_driver=_MANAGER in names,
        num_cards=sum(map(bool, map(_CARD.fullmatch, names))),
        visible=os.environ.get(VISIBLE_VARIABLE),
        num_usable=_num_usable() if fits and import_error is None else 0,
    )


def _package_version() -> str | None:
    try:
        return version("torch_npu") if find_spec("torch_npu") else None
    except PackageNotFoundError:
        return None


def _import_error() -> str | None:
    try:
        importlib.import_module("torch_npu")
    except Exception as error:  # noqa: BLE001  # whatever a half-installed CANN brings about
        return str(error) or type(error).__name__
    return None


def _import_sentence(error: str) -> str:
    if library := _LIBRARY.search(error):
        return (
            f"device npu needs CANN, of which {library[1]} cannot be loaded; install it and source "
            "its set_env.sh, or take an image that has it"
        )
    return f"device npu cannot be used, as importing torch_npu failed: {error.splitlines()[0]}"


def _num_usable() -> int:
    count: int = torch.accelerator.device_count()
    return count


def _release(version_: str) -> str:
    """The numbers of a version alone: 2.13.0 of 2.13.0.post1 and of 2.13.0+cpu."""
    numbers = re.match(r"\d+(\.\d+)*", version_)
    return numbers[0] if numbers else version_
