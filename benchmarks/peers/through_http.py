"""The share of the engine's throughput that HTTP, Ray and streaming leave, measured in turns."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml
from rich.table import Table

from benchmarks.peers.engines import KINDS, TANDEM, InstalledEngine
from benchmarks.peers.figures import tokens_per_s
from benchmarks.peers.goals import THROUGH_HTTP
from benchmarks.peers.models import ensure_model
from benchmarks.peers.rows import PeerRow
from benchmarks.peers.runners.tandem import BLOCK, CHUNK
from benchmarks.peers.session import cores_for
from benchmarks.peers.shapes import ModelShape
from benchmarks.peers.turns import Settings, Turn, run_turn
from benchmarks.serving.case import Case
from benchmarks.serving.endpoint import find_endpoint
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.plan import ClosedLoop
from benchmarks.serving.result import begin, result_console, status_line, write_result
from benchmarks.serving.service import running_service
from benchmarks.serving.session import exit_on_sigterm, run_loads
from benchmarks.serving.settings import EndpointSettings, LatencyTargets
from benchmarks.serving.statistics import Summary, summarize

_GIB: Final = 2**30
_SPARE_BYTES: Final = 2 * _GIB
"""For the interpreter, torch, and activations."""
_ROUND_S: Final = 30.0
"""The engine's own rows are repeated for so long in each repeat."""
_FIRST_ORDINARY: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Options of `through-http`."""

    shape: ModelShape
    row: Case
    num_requests: int
    repeats: int
    threads: int | None
    timeout_s: float
    models: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One repeat: the engine by itself, then through HTTP; output tokens a second."""

    engine: float
    http: float
    client_cpu_share: float
    """Share of one core that the load generator took, and the server could not have."""
    summary: Summary

    @property
    def share(self) -> float:
        """Share of the engine's throughput that HTTP and Ray leave."""
        return self.http / self.engine


def run(options: HttpSettings, *, out: Path | None) -> None:
    """Measure both, `repeats` times in turns.

    Raises:
        BenchmarkError: the model, the engine or the service fails.
    """
    facts = begin(out)
    cores = cores_for(options.threads)
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="tandem-peers-") as folder, exit_on_sigterm():
        with status_line() as note:
            checkpoint = ensure_model(options.shape, options.models, progress=lambda _: None)
        manifest = Path(folder) / "service.yaml"
        manifest.write_text(
            yaml.safe_dump(manifest_for(options.shape, options.row, checkpoint, len(cores))),
            encoding="utf-8",
        )
        for repeat in range(options.repeats):
            with status_line() as note:
                note(f"{repeat + 1}/{options.repeats}  the engine by itself")
                engine = _engine_alone(options, checkpoint, cores, repeat, Path(folder))
            pairs.append(_through_http(options, manifest, engine))
    result_console().print(table_of(pairs, options.row))
    if out is not None:
        content = {
            **facts,
            "model": options.shape.name,
            "row": str(options.row),
            "cores": list(cores),
            "pairs": [asdict(pair) | {"share": pair.share} for pair in pairs],
            "share": median(pair.share for pair in pairs),
            "goal": THROUGH_HTTP,
        }
        write_result(out, content, lambda _: None)


def manifest_for(shape: ModelShape, row: Case, checkpoint: Path, threads: int) -> dict[str, Any]:
    """An InferenceService with the settings that the engine has by itself (`runners.tandem`)."""
    longest = row.shape.num_tokens + 1
    # Whole blocks, and one more a sequence.
    num_tokens = (row.concurrency + 1) * (-(-longest // BLOCK) + 1) * BLOCK
    kv_gib = -(-num_tokens * shape.kv_bytes_per_token // _GIB)
    memory = shape.num_parameters * 2 + kv_gib * _GIB + _SPARE_BYTES
    return {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": f"peers-{shape.name.lower()}"},
        "spec": {
            "model": {
                "name": f"peers-{shape.name}",
                "source": checkpoint.absolute().as_uri(),
                "maxSeqLen": longest,
            },
            "engine": {
                "device": "cpu",
                "npuMemSize": kv_gib,
                "schedule": {
                    "templateType": "Mix",
                    "cacheBlockSize": BLOCK,
                    "maxBatchSize": max(row.concurrency, 2),
                    "maxIterTimes": row.shape.num_output,
                    "enablePrefixCache": False,
                    "splitFuse": {"splitChunkTokens": CHUNK, "splitStartBatchSize": 0},
                },
            },
            "resources": {"cpu": threads, "memory": f"{-(-memory // _GIB)}Gi"},
        },
    }


def table_of(pairs: Sequence[Pair], row: Case) -> Table:
    """One row a repeat, and the medians."""
    table = Table(title=str(row), title_justify="left", box=None, pad_edge=False)
    table.add_column("repeat")
    for name in ("engine, tok/s", "HTTP, tok/s", "share", "goal", "client CPU"):
        table.add_column(name, justify="right")
    for number, pair in enumerate(pairs, start=1):
        table.add_row(str(number), *_cells(pair.engine, pair.http, pair.share), _cpu(pair))
    engine = median(pair.engine for pair in pairs)
    http = median(pair.http for pair in pairs)
    share = median(pair.share for pair in pairs)
    table.add_row("median", *_cells(engine, http, share), "")
    return table


def _cells(engine: float, http: float, share: float) -> tuple[str, ...]:
    return f"{engine:.1f}", f"{http:.1f}", f"{share:.1%}", f"{THROUGH_HTTP:.0%}"


def _cpu(pair: Pair) -> str:
    return f"{pair.client_cpu_share:.1%}"


def _engine_alone(
    options: HttpSettings, checkpoint: Path, cores: tuple[int, ...], repeat: int, folder: Path
) -> float:
    settings = Settings(
        rows=(PeerRow(options.row.concurrency, options.row.shape),),
        repeats=1,
        row_s=_ROUND_S,
        timeout_s=options.timeout_s,
        cores=cores,
    )
    own = InstalledEngine(kind=KINDS[TANDEM], python=Path(sys.executable))
    turn = Turn(repeat=repeat, model=options.shape.name, weights="bf16", engine=own)
    result = run_turn(
        turn, options.shape, checkpoint, settings, log=folder / "engine.log", note=lambda _: None
    )
    if result.error is not None:
        raise BenchmarkError(result.error)
    return median(tokens_per_s(sample) for sample in result.samples)


def _through_http(options: HttpSettings, manifest: Path, engine: float) -> Pair:
    server = EndpointSettings(
        url=None,
        manifest=manifest,
        token_ids=(_FIRST_ORDINARY, options.shape.vocab_size - 1),
        timeout_s=options.timeout_s,
    )
    load = ClosedLoop(
        name=str(options.row),
        shape=options.row.shape,
        concurrency=options.row.concurrency,
        num_requests=options.num_requests,
        duration_s=float("inf"),
    )
    with running_service(manifest) as url:
        seen = run_loads([load], find_endpoint(url, server), server)[0]
    summary = summarize(seen, LatencyTargets())
    if summary.num_failed:
        failure = summary.failures[0]
        raise BenchmarkError(
            f"{summary.num_failed} of {summary.num_requests} requests failed: {failure.example}"
        )
    return Pair(
        engine=engine,
        http=summary.output_tokens_per_s,
        client_cpu_share=summary.client_cpu_share,
        summary=summary,
    )
