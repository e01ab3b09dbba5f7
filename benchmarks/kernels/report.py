"""The figures as tables, and as JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.kernels.cases import Case
from benchmarks.kernels.measure import Limits
from benchmarks.kernels.shapes import MODELS
from benchmarks.kernels.steps import StepTimes, floor_seconds, read_bytes
from benchmarks.serving.result import write_figures


@dataclass(frozen=True, slots=True)
class CaseTimes:
    """One kernel at one shape, in seconds."""

    model: str
    case: Case
    native: float
    reference: float | None
    """None: it was not measured."""


def kernel_table(results: list[CaseTimes], limits: Limits) -> Table:
    """One line a kernel and shape."""
    table = Table(title="Kernels: native beside the reference in torch")
    for name in ("model", "kernel", "shape"):
        table.add_column(name)
    for name in ("native µs", "torch µs", "times", "GB/s", "% of read", "GFLOP/s", "% of GEMM"):
        table.add_column(name, justify="right")
    for result in results:
        read = result.case.num_bytes / result.native
        rate = result.case.operations / result.native
        table.add_row(
            result.model,
            result.case.kernel,
            result.case.shape,
            f"{result.native * 1e6:,.1f}",
            "" if result.reference is None else f"{result.reference * 1e6:,.1f}",
            "" if result.reference is None else f"{result.reference / result.native:.1f}",
            f"{read / 1e9:.1f}",
            f"{100 * read / limits.read_bytes_per_s:.0f}",
            f"{rate / 1e9:.0f}" if rate else "",
            f"{100 * rate / limits.gemm_per_s:.0f}" if rate else "",
        )
    return table


def step_table(steps: list[StepTimes], limits: Limits) -> Table:
    """One line a batch."""
    table = Table(title="Forward steps on random weights, ms")
    for name in ("model", "batch"):
        table.add_column(name)
    names = ("native", "of it GEMM", "rest", "torch", "times", "limit", "% of limit")
    for name in (*names, "W8A8", "times", "% of read"):
        table.add_column(name, justify="right")
    for step in steps:
        floor = _floor(step, limits)
        torch_ms = "" if step.reference is None else f"{step.reference * 1e3:,.2f}"
        times = "" if step.reference is None else f"{step.reference / step.native:.1f}"
        table.add_row(
            step.model,
            step.batch.name,
            f"{step.native * 1e3:,.2f}",
            f"{step.native_gemm * 1e3:,.2f}",
            f"{(step.native - step.native_gemm) * 1e3:,.2f}",
            torch_ms,
            times,
            f"{floor * 1e3:,.2f}",
            f"{100 * floor / step.native:.0f}",
            f"{step.native_int8 * 1e3:,.2f}",
            f"{step.native / step.native_int8:.2f}",
            f"{100 * _int8_read_s(step, limits) / step.native_int8:.0f}",
        )
    return table


def show(console: Console, table: Table) -> None:
    """Print in full, also where the terminal is narrow or there is none."""
    console.print(table, soft_wrap=True)


def write_json(
    path: Path,
    *,
    kernels: list[CaseTimes],
    steps: list[StepTimes],
    limits: Limits,
    settings: dict[str, Any],
) -> None:
    """All figures, with the machine and the commit."""
    write_figures(
        path,
        settings=settings,
        limits={
            "read_bytes_per_s": limits.read_bytes_per_s,
            "gemm_per_s": limits.gemm_per_s,
        },
        kernels=[
            {
                "model": result.model,
                "kernel": result.case.kernel,
                "shape": result.case.shape,
                "native_s": result.native,
                "reference_s": result.reference,
                "bytes": result.case.num_bytes,
                "operations": result.case.operations,
            }
            for result in kernels
        ],
        steps=[
            {
                "model": step.model,
                "batch": step.batch.name,
                "native_s": step.native,
                "native_gemm_s": step.native_gemm,
                "native_int8_s": step.native_int8,
                "int8_read_s": _int8_read_s(step, limits),
                "reference_s": step.reference,
                "limit_s": _floor(step, limits),
            }
            for step in steps
        ],
    )


def _int8_read_s(step: StepTimes, limits: Limits) -> float:
    """Reading what a step in W8A8 reads; products are no limit where rows are few."""
    return read_bytes(step, MODELS[step.model], torch.int8) / limits.read_bytes_per_s


def _floor(step: StepTimes, limits: Limits) -> float:
    return floor_seconds(
        step, MODELS[step.model], read=limits.read_bytes_per_s, gemm=limits.gemm_per_s
    )
