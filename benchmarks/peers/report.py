"""Shows the figures: tables for a terminal, a document for the file."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from benchmarks.peers.engines import KINDS, TANDEM
from benchmarks.peers.figures import ProcessFigures, RowFigures
from benchmarks.peers.goals import SHARE_OF_LIMIT
from benchmarks.peers.roofline import Roofline

_NONE: Final = "–"


def row_table(figures: Sequence[RowFigures], engines: Sequence[str]) -> Table:
    """Tokens a second of each engine in each row, what Tandem is to the best peer, and the goal.

    They are output tokens, or prompt tokens where the row has one output token; medians.
    """
    table = _table("Tokens/s")
    for name in ("model", "weights", "row"):
        table.add_column(name)
    for engine in engines:
        table.add_column(title_of_engine(engine), justify="right")
    for name in ("limit", "ratio", "goal", "share", "goal"):
        table.add_column(name, justify="right")
    for row in figures:
        table.add_row(
            row.model,
            row.weights,
            str(row.row),
            *(_number(each.tokens_per_s) for each in row.engines),
            _number(row.limit),
            _number(row.tandem_ratio, "×"),
            f"{row.goal:g}×",
            _percent(_tandem_share(row)),
            _percent(SHARE_OF_LIMIT),
        )
    return table


def latency_table(figures: Sequence[RowFigures]) -> Table:
    """TTFT, TPOT, the spread of the tokens a second and the share of the limit of each engine."""
    table = _table("Latencies in ms")
    for name in ("model", "weights", "row", "engine"):
        table.add_column(name)
    for name in ("TTFT P50", "TPOT P50", "P90", "tok/s", "lowest", "highest", "share", "samples"):
        table.add_column(name, justify="right")
    for row in figures:
        for each in row.engines:
            if each.tokens_per_s is None:
                continue
            table.add_row(
                row.model,
                row.weights,
                str(row.row),
                title_of_engine(each.engine),
                _number(each.ttft_p50_ms),
                _number(each.tpot_p50_ms),
                _number(each.tpot_p90_ms),
                _number(each.tokens_per_s),
                _number(each.lowest),
                _number(each.highest),
                _percent(each.share_of_limit),
                str(each.num_samples),
            )
    return table


def process_table(figures: Sequence[ProcessFigures]) -> Table:
    """Load time, memory, and how fast one sequence is right after loading.

    Load is the time from the start of a process to its first token, memory its VmHWM.
    """
    table = _table("Load and memory")
    for name in ("model", "weights", "engine", "version"):
        table.add_column(name)
    table.add_column("load, s", justify="right")
    table.add_column("memory, MiB", justify="right")
    table.add_column("steady, tok/s", justify="right")
    table.add_column("slowest of the first seconds", justify="right")
    for each in figures:
        table.add_row(
            each.model,
            each.weights,
            title_of_engine(each.engine),
            escape(each.version),
            _number(each.load_s),
            _NONE if each.peak_mib is None else f"{each.peak_mib:,.0f}",
            _number(each.steady),
            _percent(each.first_lowest),
        )
    return table


def sentences(figures: Sequence[ProcessFigures], missing: Mapping[str, str]) -> list[str]:
    """List what is missing from the tables, and why, one sentence each."""
    lines = [f"{title_of_engine(name)} is not compared: {why}" for name, why in missing.items()]
    for each in figures:
        lines += [f"{each.model} {each.weights}: {error}" for error in each.errors]
    return lines


def roofline_sentence(model: str, roof: Roofline, reader: str) -> str:
    """The roof of a model in words."""
    parts = [f"memory {roof.bandwidth / 1e9:.1f} GB/s ({reader})"]
    for weights, unit in (("bf16", "GFLOP/s"), ("w8a8", "GOP/s")):
        parts += [
            f"{weights} at {size} rows {rate / 1e9:.0f} {unit}"
            for size, rate in roof.rates(weights).items()
        ]
    return f"Roofline with {model}: {', '.join(parts)}."


def document(
    figures: Sequence[RowFigures],
    processes: Sequence[ProcessFigures],
    *,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    roofs: Mapping[str, Sequence[Roofline]],
    engine_settings: Mapping[str, Mapping[str, Any]],
    missing: Mapping[str, str],
) -> dict[str, Any]:
    """The result as it stands in result.json."""
    return {
        **facts,
        "settings": dict(settings),
        "engines": {name: dict(content) for name, content in engine_settings.items()},
        "missing": dict(missing),
        "roofs": {model: [asdict(roof) for roof in each] for model, each in roofs.items()},
        "rows": [_row_document(row) for row in figures],
        "processes": [asdict(each) for each in processes],
    }


def title_of_engine(name: str) -> str:
    """An engine's name for people."""
    return KINDS[name].title


def _row_document(row: RowFigures) -> dict[str, Any]:
    best = row.best_peer
    return {
        "model": row.model,
        "weights": row.weights,
        "row": str(row.row),
        "counts": "prompt tokens" if row.is_prompt else "output tokens",
        "limit": row.limit,
        "best_peer": None if best is None else best.engine,
        "ratio": row.tandem_ratio,
        "goal": row.goal,
        "goal_of_share": SHARE_OF_LIMIT,
        "engines": [asdict(each) for each in row.engines],
    }


def _tandem_share(row: RowFigures) -> float | None:
    shares = [each.share_of_limit for each in row.engines if each.engine == TANDEM]
    return shares[0] if shares else None


def _number(value: float | None, unit: str = "") -> str:
    """Three digits."""
    if value is None:
        return _NONE
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004  # three digits
    return f"{text}{unit}"


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share:.0%}"


def _table(title: str) -> Table:
    return Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
