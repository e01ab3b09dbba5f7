"""A replica of two ranks at both ends of a link, behind HTTP, and the load beside it.

The replica is the project's engine with its HTTP application, without Ray: Ray's own processes
would be at one end of the link, and have nothing to do with what is measured. Server and load are
in the namespace of rank 0.
"""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import httpx
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.overlap.link import LOOPBACK, End, enter
from benchmarks.overlap.link_communicator import LinkWorld
from benchmarks.peers.shapes import MAX_POSITIONS, ModelShape
from benchmarks.serving.endpoint import find_endpoint
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.plan import loads_of
from benchmarks.serving.session import run_loads
from benchmarks.serving.settings import EndpointSettings, LatencyTargets, LoadSettings
from benchmarks.serving.statistics import Summary, summarize
from tandem_engine.api.config import EngineConfig, ParallelismConfig, ScheduleConfig
from tandem_engine.api.micro_batches import StreamOptions
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_engine.runner.rank_launcher import ProcessLauncher, RankHandle, RankTask
from tandem_engine.runner.rank_process import run_rank
from tandem_serve.http.app import build_app
from tandem_serve.http.settings import HttpSettings

SHAPE: Final = ModelShape(
    name="overlap",
    hidden_size=1024,
    num_layers=8,
    num_heads=16,
    num_kv_heads=8,
    head_size=128,
    intermediate_size=3072,
    vocab_size=8192,
)
_FIRST_ORDINARY: Final = 16
_BLOCK: Final = 128
_NUM_BLOCKS: Final = 512
_WARMUP: Final = 2
_METRICS: Final = ("tandem_micro_batch_", "tandem_communication_seconds_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """The served model, and where its ranks are."""

    model_path: str
    ends: tuple[End, End]
    cores: tuple[int, int]
    micro_batch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Figures of a load, and the replica's own of its micro-batches."""

    summary: Summary
    metrics: dict[str, float]


def serve(replica: Replica, connection: Connection) -> None:
    """Serve until the pipe ends; report the port first."""
    # One compute thread a rank: the other core is the other rank's.
    os.environ |= {"TANDEM_PIN": "off", "TANDEM_THREADS": "1"}
    enter(replica.ends[0].namespace)
    os.sched_setaffinity(0, {replica.cores[0]})
    engine = _engine(replica)
    settings = HttpSettings(model_name=SHAPE.name, created_s=int(time.time()))
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(settings, lambda: engine), log_level="error", lifespan="off", ws="none"
        )
    )
    with closing(socket.create_server((LOOPBACK, 0), backlog=1024)) as listener:
        connection.send(listener.getsockname()[1])
        threading.Thread(target=_end_with, args=(connection, server), daemon=True).start()
        server.run(sockets=[listener])
    asyncio.run(engine.stop())


def send_load(end: End, port: int, options: LoadSettings, connection: Connection) -> None:
    """Send a load from the namespace of an end, and report what came of it; or a sentence."""
    enter(end.namespace)
    url = f"http://{LOOPBACK}:{port}/v1"
    server = EndpointSettings(
        url=url, manifest=Path(), token_ids=(_FIRST_ORDINARY, SHAPE.vocab_size - 1)
    )
    try:
        endpoint = find_endpoint(url, server)
        loads = loads_of(options, max_model_len=endpoint.max_model_len)
        (seen,) = run_loads(loads, endpoint, server, num_warmup=_WARMUP)
    except BenchmarkError as error:
        connection.send(str(error))
        return
    text = httpx.get(f"http://{LOOPBACK}:{port}/metrics", trust_env=False).text
    connection.send(Served(summary=summarize(seen, LatencyTargets()), metrics=metrics_of(text)))


def metrics_of(text: str) -> dict[str, float]:
    """The series on micro-batches and communication, by name and labels, the model's left out."""
    return {
        " ".join(
            (
                sample.name,
                *(value for name, value in sample.labels.items() if name != "model_name"),
            )
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(_METRICS)
    }


class _LinkLauncher:
    """Implements `RankLauncher`: rank 1 is at the other end of the link, on a core of its own."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._processes = ProcessLauncher()

    def launch(self, tasks: Sequence[RankTask]) -> Sequence[RankHandle]:
        """See `RankLauncher`."""
        return self._processes.launch(
            [
                _TaskAtEnd(
                    task.rank,
                    task.settings,
                    task.address,
                    self._replica.ends[task.rank].namespace,
                    self._replica.cores[task.rank],
                )
                for task in tasks
            ]
        )

    def close(self) -> None:
        """See `RankLauncher`."""
        self._processes.close()


@dataclass(frozen=True, slots=True)
class _TaskAtEnd(RankTask):
    """The rank in the namespace of its end."""

    namespace: str | None
    core: int

    def run(self, connection: Connection) -> None:
        """See `RankTask`."""
        enter(self.namespace)
        os.sched_setaffinity(0, {self.core})
        run_rank(connection, self.settings, self.address, self.rank)


def _engine(replica: Replica) -> AsyncEngine:
    config = EngineConfig(
        model_path=replica.model_path,
        # Micro-batches are tested with linear layers in 8 bits.
        quantization="w8a8",
        max_seq_len=MAX_POSITIONS,
        num_kv_blocks=_NUM_BLOCKS,
        parallelism=ParallelismConfig(tp=2),
        stream_options=StreamOptions(micro_batch=replica.micro_batch),
        schedule=ScheduleConfig(
            cache_block_size=_BLOCK, max_iter_times=MAX_POSITIONS, enable_prefix_cache=False
        ),
    )
    return build_engine(
        config,
        report=lambda _: None,
        launcher=_LinkLauncher(replica),
        world=LinkWorld([end.address for end in replica.ends]),
    )


def _end_with(connection: Connection, server: uvicorn.Server) -> None:
    with suppress(EOFError, OSError):
        connection.recv()
    server.should_exit = True
