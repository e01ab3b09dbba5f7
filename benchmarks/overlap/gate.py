"""Where there is nothing to hide the gate leaves micro-batches off, and they cost nothing.

Between ranks of one host communication is copying, through memory or over loopback: it keeps a core
busy as computing does. Two replicas, with micro-batches and without, compute the same steps in
turns. With one rank there is no communication and no gate; that is not measured.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Table

from benchmarks.parallel.tp import SideProcess
from benchmarks.parallel.tp_side import Load, Side
from benchmarks.peers.models import cache_folder, ensure_model
from benchmarks.peers.shapes import find_shape
from benchmarks.serving.result import begin, result_console, status_line, write_document
from benchmarks.serving.session import exit_on_sigterm
from tandem_engine.api.micro_batch_stats import MicroBatchStats

TP: Final = 2
GOAL: Final = 0.01
"""Share of the throughput that micro-batches may cost."""
LOADS: Final = (
    Load(name="prefill 1 x 512", num_rows=1, num_tokens=512),
    Load(name="decode 16 rows", num_rows=16, num_tokens=64, num_decodes=8),
)
LINKS: Final = ("shared memory", "loopback")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """Options of `gate`; see the command line."""

    model: str
    rounds: int
    models: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFigures:
    """One load on one link."""

    link: str
    load: str
    off_s: float
    on_s: float
    """Medians of a step."""
    ratios: tuple[float, ...]
    """Throughput with micro-batches over that without, round by round, once the gate has settled:
    of the second half of the rounds."""
    num_splits: int
    """Steps of this load that were cut, of all rounds."""
    num_splits_late: int
    """Those of the second half."""
    gates: dict[str, str]
    """Phase → what its gate says at the end."""

    @property
    def ratio(self) -> float:
        """The median."""
        return median(self.ratios)

    @property
    def is_met(self) -> bool:
        """True if throughput is what it is without."""
        return self.ratio >= 1.0 - GOAL


def run_gate(settings: GateSettings, *, out: Path | None) -> None:
    """Measure, show, write.

    Raises:
        BenchmarkError: A side ends before its time.
    """
    facts = begin(out)
    path = ensure_model(find_shape(settings.model), settings.models or cache_folder() / "models")
    figures: list[GateFigures] = []
    with exit_on_sigterm(), status_line() as note:
        for link in LINKS:
            with ExitStack() as stack:
                off, on = (
                    stack.enter_context(
                        SideProcess.opened(_side(str(path), link, micro_batch=micro_batch))
                    )
                    for micro_batch in (False, True)
                )
                for load in LOADS:
                    note(f"{link}: {load.name}")
                    figures.append(_measure(link, load, off, on, settings.rounds))
    result_console().print(table_of(figures))
    if out is not None:
        content = {
            **facts,
            "settings": asdict(settings),
            "goal": GOAL,
            "figures": [
                asdict(case) | {"ratio": case.ratio, "is_met": case.is_met} for case in figures
            ],
        }
        write_document(out / "gate.json", content)


def _side(path: str, link: str, *, micro_batch: bool) -> Side:
    return Side(
        model_path=path,
        tp=TP,
        num_threads=TP,
        num_blocks=max(load.num_blocks for load in LOADS),
        micro_batch=micro_batch,
        over_loopback=link != LINKS[0],
    )


def _measure(link: str, load: Load, off: SideProcess, on: SideProcess, rounds: int) -> GateFigures:
    times: dict[SideProcess, list[float]] = {off: [], on: []}
    first = half = _splits(on.micro_batches())
    for number in range(rounds):
        if number == rounds // 2:
            half = _splits(on.micro_batches())
        for side in (off, on) if number % 2 else (on, off):
            times[side].append(median(side.time(load)))
    stats = on.micro_batches()
    late = slice(rounds // 2, None)
    return GateFigures(
        link=link,
        load=load.name,
        off_s=median(times[off][late]),
        on_s=median(times[on][late]),
        ratios=tuple(a / b for a, b in zip(times[off][late], times[on][late], strict=True)),
        num_splits=_splits(stats) - first,
        num_splits_late=_splits(stats) - half,
        gates=_gates(stats),
    )


def _splits(stats: MicroBatchStats | None) -> int:
    return 0 if stats is None else stats.num_splits


def _gates(stats: MicroBatchStats | None) -> dict[str, str]:
    if stats is None:
        return {}
    return {
        phase: f"{'open' if state.is_open else 'shut'}: {state.reason}"
        for phase, state in stats.gates.items()
    }


def table_of(figures: Sequence[GateFigures]) -> Table:
    """A row a load and link."""
    table = Table(title="Micro-batches on beside off", title_justify="left", box=None)
    table.add_column("ranks exchange through")
    table.add_column("steps")
    for name in ("off, ms", "on, ms", "throughput", "goal", "cut", "of them late"):
        table.add_column(name, justify="right")
    for case in figures:
        cells: tuple[Any, ...] = (case.num_splits, case.num_splits_late)
        table.add_row(
            case.link,
            case.load,
            f"{case.off_s * 1e3:.1f}",
            f"{case.on_s * 1e3:.1f}",
            f"{case.ratio:.3f}",
            f"{1 - GOAL:.2f}",
            *map(str, cells),
        )
    return table
