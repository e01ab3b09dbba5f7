"""A replica over the link under a trace, with and without micro-batches: TTFT through HTTP."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.table import Table

from benchmarks.overlap import serving_side
from benchmarks.overlap.link import LOOPBACK_ENDS, End, link_or_none
from benchmarks.overlap.processes import cores_of_ranks, receive, started
from benchmarks.overlap.serving_side import SHAPE, Replica, Served
from benchmarks.peers.models import cache_folder, ensure_model
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.plan import loads_of
from benchmarks.serving.result import begin, result_console, status_line, write_document
from benchmarks.serving.session import exit_on_sigterm
from benchmarks.serving.settings import LoadSettings

_STOP_S: Final = 60.0
_LOAD_STOP_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Options of `serving`; see the command line."""

    load: LoadSettings
    bits_per_s: float
    rounds: int
    models: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoad:
    """One replica under the load."""

    micro_batch: bool
    served: Served


def run_serving(settings: ServingSettings, *, out: Path | None) -> None:
    """Measure both in turns, show, write.

    Raises:
        BenchmarkError: A replica does not start, or no request succeeds.
    """
    # A trace that cannot be used is refused before a replica starts.
    loads_of(settings.load, max_model_len=None)
    facts = begin(out)
    console = result_console()
    path = ensure_model(SHAPE, settings.models or cache_folder() / "models")
    with exit_on_sigterm(), link_or_none(console.print) as link:
        if link is not None:
            link.set_rate(settings.bits_per_s)
        ends = LOOPBACK_ENDS if link is None else link.ends
        turns = [number % 4 in {1, 2} for number in range(2 * settings.rounds)]
        rounds = [_round(settings, str(path), ends, micro_batch=on) for on in turns]
    console.print(table_of(rounds))
    if out is not None:
        content = {
            **facts,
            "settings": asdict(settings),
            "model": asdict(SHAPE),
            "link": "loopback" if link is None else "shaped",
            "rounds": [asdict(each) for each in rounds],
        }
        write_document(out / "serving.json", content)


def _round(
    settings: ServingSettings, path: str, ends: tuple[End, End], *, micro_batch: bool
) -> ServedLoad:
    replica = Replica(model_path=path, ends=ends, cores=cores_of_ranks(), micro_batch=micro_batch)
    with status_line() as note:
        note(f"a replica with micro-batches {_word(micro_batch)} starts")
    with started(serving_side.serve, replica, name="replica", end_s=_STOP_S) as server:
        port = receive(server)
        with started(
            serving_side.send_load, ends[0], port, settings.load, name="load", end_s=_LOAD_STOP_S
        ) as client:
            served = receive(client)
    if isinstance(served, str):
        raise BenchmarkError(served)
    if served.summary.ttft_ms is None:
        raise BenchmarkError(f"No request succeeded: {served.summary.failures[0].example}")
    return ServedLoad(micro_batch=micro_batch, served=served)


def table_of(rounds: Sequence[ServedLoad]) -> Table:
    """A row a replica."""
    table = Table(title="Two ranks over the link, through HTTP", title_justify="left", box=None)
    table.add_column("micro-batches")
    for name in (
        "requests",
        "failed",
        "TTFT P50, ms",
        "P90",
        "TPOT P50, ms",
        "output tok/s",
        "steps cut",
        "overlap",
    ):
        table.add_column(name, justify="right")
    for each in rounds:
        summary, metrics = each.served.summary, each.served.metrics
        ttft, tpot = summary.ttft_ms, summary.tpot_ms
        overlap = metrics.get("tandem_micro_batch_overlap_ratio")
        table.add_row(
            _word(each.micro_batch),
            str(summary.num_requests),
            str(summary.num_failed),
            f"{ttft.p50:,.0f}" if ttft else "",
            f"{ttft.p90:,.0f}" if ttft else "",
            f"{tpot.p50:,.1f}" if tpot else "",
            f"{summary.output_tokens_per_s:.1f}",
            f"{metrics.get('tandem_micro_batch_splits_total', 0.0):.0f}",
            f"{overlap:.2f}" if overlap is not None else "",
        )
    return table


def _word(micro_batch: bool) -> str:
    return "on" if micro_batch else "off"
