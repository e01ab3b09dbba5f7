"""From what was measured to figures: medians, ratios to the best peer, shares of limits. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.peers.engines import TANDEM
from benchmarks.peers.goals import goal
from benchmarks.peers.roofline import Roofline, is_prompt_row, row_limit, tokens_counted
from benchmarks.peers.shapes import ModelShape
from benchmarks.peers.turns import Sample, TurnResult
from benchmarks.serving.case import Case
from benchmarks.serving.statistics import percentile

MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """One engine in one row; None where it was not measured."""

    engine: str
    tokens_per_s: float | None = None
    """Median of all samples: output tokens, or prompt tokens where the row is all prompt."""
    lowest: float | None = None
    highest: float | None = None
    num_samples: int = 0
    ttft_p50_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p90_ms: float | None = None
    share_of_limit: float | None = None
    reason: str | None = None
    """The reason for a missing measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFigures:
    """All engines in one row."""

    model: str
    weights: str
    row: Case
    limit: float | None
    """Tokens a second at best; None where it is not known."""
    goal: float
    engines: tuple[EngineFigures, ...]

    @property
    def is_prompt(self) -> bool:
        """True when prompt tokens are counted."""
        return is_prompt_row(self.row)

    @property
    def best_peer(self) -> EngineFigures | None:
        """The fastest engine that is not Tandem."""
        peers = [each for each in self.engines if each.engine != TANDEM]
        measured = [each for each in peers if each.tokens_per_s is not None]
        return max(measured, key=lambda each: each.tokens_per_s or 0.0, default=None)

    def ratio(self, each: EngineFigures) -> float | None:
        """An engine's throughput as a multiple of the best peer's."""
        best = self.best_peer
        if best is None or not best.tokens_per_s or each.tokens_per_s is None:
            return None
        return each.tokens_per_s / best.tokens_per_s

    @property
    def tandem_ratio(self) -> float | None:
        """Tandem's; None where it or every peer is missing."""
        own = [each for each in self.engines if each.engine == TANDEM]
        return self.ratio(own[0]) if own else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFigures:
    """Load time and memory of an engine's processes with one model."""

    engine: str
    model: str
    weights: str
    version: str
    load_s: float | None
    """Median, from the start of the process to its first token."""
    peak_mib: float | None
    """Median of the most memory that it had."""
    steady: float | None
    """Tokens a second of one sequence once the first seconds are over."""
    first_lowest: float | None
    """The slowest half of a second within the first seconds, as a share of `steady`."""
    errors: tuple[str, ...]


def tokens_per_s(sample: Sample) -> float:
    """Throughput of a sample: its counted tokens over the time of its last one."""
    return tokens_counted(sample.row) / max(times[-1] for times in sample.times_s)


def ttfts_s(samples: Iterable[Sample]) -> list[float]:
    """Time to the first token of each sequence, sorted."""
    return sorted(times[0] for sample in samples for times in sample.times_s)


def tpots_s(samples: Iterable[Sample]) -> list[float]:
    """Time of each further token, one value a sequence, sorted; those of one token have none."""
    return sorted(
        (times[-1] - times[0]) / (len(times) - 1)
        for sample in samples
        for times in sample.times_s
        if len(times) > 1
    )


def steady_rate(first_rates: Sequence[float]) -> float | None:
    """The median of the second half of the samples after loading; None: there are none."""
    later = first_rates[len(first_rates) // 2 :]
    return median(later) if later else None


def first_lowest(first_rates: Sequence[float]) -> float | None:
    """The lowest sample after loading, as a share of the steady rate."""
    steady = steady_rate(first_rates)
    return None if steady is None else min(first_rates) / steady


def best_roofline(roofs: Sequence[Roofline]) -> Roofline | None:
    """The roof of a run: the best that a repeat measured; None when none did.

    A limit is what the machine can do: other work lowers a measurement, and nothing raises it.
    """
    if not roofs:
        return None
    return Roofline(
        bandwidth=max(roof.bandwidth for roof in roofs),
        bf16=_best_rates([roof.bf16 for roof in roofs]),
        w8a8=_best_rates([roof.w8a8 for roof in roofs]),
    )


def row_figures(
    results: Sequence[TurnResult],
    shape: ModelShape,
    rows: Sequence[Case],
    *,
    weights: str,
    engines: Sequence[str],
    roof: Roofline | None,
) -> list[RowFigures]:
    """The figures of each row of one model with one type of weights.

    Args:
        results: Of all turns.
        shape: The model.
        rows: The rows, in the order of the table.
        weights: The type.
        engines: Names of the engines, in the order of the table.
        roof: Limits of the machine.
    """
    of_model = [each for each in results if (each.model, each.weights) == (shape.name, weights)]
    figures = []
    for row in rows:
        limit = None if roof is None else row_limit(shape, row, roof, weights)
        figures.append(
            RowFigures(
                model=shape.name,
                weights=weights,
                row=row,
                limit=limit,
                goal=goal(shape.name, row, weights),
                engines=tuple(
                    _engine_figures(name, [r for r in of_model if r.engine == name], row, limit)
                    for name in engines
                ),
            )
        )
    return figures


def process_figures(results: Sequence[TurnResult]) -> list[ProcessFigures]:
    """Load time and memory of each engine, model and type, in the order in which they came."""
    groups: dict[tuple[str, str, str], list[TurnResult]] = {}
    for result in results:
        groups.setdefault((result.model, result.weights, result.engine), []).append(result)
    return [
        ProcessFigures(
            engine=engine,
            model=model,
            weights=weights,
            version=next((each.version for each in group if each.version), ""),
            load_s=_median([each.load_s for each in group]),
            peak_mib=_in_mib(_median([each.peak_bytes for each in group])),
            steady=_median([steady_rate(each.first_rates) for each in group]),
            first_lowest=_median([first_lowest(each.first_rates) for each in group]),
            errors=tuple(dict.fromkeys(each.error for each in group if each.error)),
        )
        for (model, weights, engine), group in groups.items()
    ]


def _engine_figures(
    name: str, results: Sequence[TurnResult], row: Case, limit: float | None
) -> EngineFigures:
    samples = [sample for each in results for sample in each.samples if sample.row == row]
    if not samples:
        errors = [each.error for each in results if each.error]
        return EngineFigures(engine=name, reason=errors[0] if errors else "not compared")
    speeds = [tokens_per_s(sample) for sample in samples]
    ttfts, tpots = ttfts_s(samples), tpots_s(samples)
    return EngineFigures(
        engine=name,
        tokens_per_s=median(speeds),
        lowest=min(speeds),
        highest=max(speeds),
        num_samples=len(speeds),
        ttft_p50_ms=percentile(ttfts, 50) * 1e3,
        tpot_p50_ms=percentile(tpots, 50) * 1e3 if tpots else None,
        tpot_p90_ms=percentile(tpots, 90) * 1e3 if tpots else None,
        share_of_limit=median(speeds) / limit if limit else None,
    )


def _best_rates(rates: Sequence[Mapping[int, float]]) -> dict[int, float]:
    known = [each for each in rates if each]
    return {size: max(each[size] for each in known) for size in known[0]} if known else {}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _in_mib(size: float | None) -> float | None:
    return None if size is None else size / MIB
