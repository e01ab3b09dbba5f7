"""`tandem doctor`: compare what a device computes with the reference, kernel by kernel."""

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import typer
from rich.table import Table

from tandem_engine.api.errors import EngineError
from tandem_serve.commands.common import EXIT_FAILED, out, print_error
from tandem_serve.commands.tables import print_table

if TYPE_CHECKING:
    from tandem_engine.doctor import Finding

_PACKAGES: Final = ("tandem", "torch", "torch_npu")


def doctor(device: str) -> None:
    """Examine the device; show versions and one line a kernel."""
    try:
        # torch is heavy, and the operator's image has none.
        from tandem_engine.doctor import TOLERANCE, examine_device  # noqa: PLC0415
    except ImportError as error:
        print_error(f"{error}; doctor needs the engine: pip install '.[engine]' in a checkout")
        raise typer.Exit(EXIT_FAILED) from None
    try:
        examination = examine_device(device)
    except EngineError as error:
        print_error(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    out.print(f"{device}: {examination.device}, {_versions()}")
    _show(examination.findings, TOLERANCE)
    if not all(finding.is_right for finding in examination.findings):
        raise typer.Exit(EXIT_FAILED)


def _versions() -> str:
    """All that decide, so that the output alone is a report."""
    numbers = {name: _version(name) for name in _PACKAGES}
    packages = [f"{name} {number}" for name, number in numbers.items() if number]
    return ", ".join([f"Python {platform.python_version()}", *packages])


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _show(findings: "Sequence[Finding]", tolerance: float) -> None:
    table = Table("kernel", "largest error", f"at most {tolerance:.2%}", box=None, pad_edge=False)
    for finding in findings:
        error = "-" if finding.refusal else f"{finding.error:.2%}"
        table.add_row(finding.name, error, _verdict(finding))
    print_table(table)
    wrong = sum(not finding.is_right for finding in findings)
    out.print(
        f"{wrong} of {len(findings)} kernels are wrong; please report all of this"
        if wrong
        else f"all {len(findings)} kernels are right"
    )


def _verdict(finding: "Finding") -> str:
    if finding.refusal:
        return f"refused: {finding.refusal}"
    return "right" if finding.is_right else "wrong"
