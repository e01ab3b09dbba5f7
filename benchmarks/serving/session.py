"""One benchmark from its settings to its files: find a server, measure, show, write."""

import asyncio
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console

from benchmarks.serving.client import Client
from benchmarks.serving.endpoint import Endpoint, find_endpoint
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.plan import Load, loads_of
from benchmarks.serving.plot import save_plot
from benchmarks.serving.progress import Progress
from benchmarks.serving.prompts import PromptSource
from benchmarks.serving.report import result_document, show
from benchmarks.serving.result import begin, result_console, title_of, write_result
from benchmarks.serving.run import run_load
from benchmarks.serving.service import running_service
from benchmarks.serving.settings import EndpointSettings, LatencyTargets, LoadSettings
from benchmarks.serving.statistics import Measurement, Summary, summarize


def measure(
    options: LoadSettings, server: EndpointSettings, targets: LatencyTargets, *, out: Path | None
) -> None:
    """Run a benchmark.

    Raises:
        BenchmarkError: it failed, or no request of a case succeeded.
    """
    loads_of(options, max_model_len=None)  # Invalid options are refused before a server starts.
    facts = begin(out)
    with exit_on_sigterm(), _server(server) as url:
        endpoint = find_endpoint(url, server)
        loads = loads_of(options, max_model_len=endpoint.max_model_len)
        seen = run_loads(loads, endpoint, server, num_warmup=options.num_warmup)
    summaries = [summarize(measurement, targets) for measurement in seen]
    show(summaries, result_console())
    if out is not None:
        facts["server"] = _server_facts(endpoint, server)
        settings = _settings_facts(options, targets, server)
        title = title_of(facts, endpoint.model)
        write_result(
            out,
            result_document(summaries, facts=facts, settings=settings),
            lambda file: save_plot(summaries, file, title=title),
        )
    _check_success(summaries)


def _server(server: EndpointSettings) -> AbstractContextManager[str]:
    return running_service(server.manifest) if server.url is None else nullcontext(server.url)


def run_loads(
    loads: Sequence[Load],
    endpoint: Endpoint,
    server: EndpointSettings,
    *,
    num_warmup: int | None = None,
) -> list[Measurement]:
    """Send loads to a server one after the other, each after its warm-up, and show the progress.

    Args:
        loads: The loads to send.
        endpoint: The server.
        server: Settings with the time limit of an answer.
        num_warmup: See `LoadSettings`.
    """
    return asyncio.run(_run_loads(loads, endpoint, server, num_warmup))


async def _run_loads(
    loads: Sequence[Load], endpoint: Endpoint, server: EndpointSettings, num_warmup: int | None
) -> list[Measurement]:
    prompts = PromptSource(endpoint.token_ids, Random())  # noqa: S311  # load, not secrets
    console = Console(stderr=True, highlight=False)
    with (
        Client(endpoint, prompts, timeout_s=server.timeout_s) as client,
        Progress(console) as progress,
    ):
        return [
            await run_load(load, client, num_warmup=num_warmup, progress=progress) for load in loads
        ]


def _server_facts(endpoint: Endpoint, server: EndpointSettings) -> dict[str, Any]:
    return {
        "url": endpoint.base_url,
        "model": endpoint.model,
        "max_model_len": endpoint.max_model_len,
        "started_from": str(server.manifest) if server.url is None else None,
    }


def _settings_facts(
    options: LoadSettings, targets: LatencyTargets, server: EndpointSettings
) -> dict[str, Any]:
    load = {
        "cases": [str(case) for case in options.cases],
        # JSON has no infinity.
        "rate": None if options.rate is None else f"{options.rate:g}",
    }
    return {
        "load": asdict(options) | load,
        "targets": asdict(targets),
        "timeout_s": server.timeout_s,
    }


def _check_success(summaries: Sequence[Summary]) -> None:
    for summary in summaries:
        if summary.num_failed == summary.num_requests:
            raise BenchmarkError(f"No request of {summary.name} succeeded.")


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the program as Ctrl-C does, so that it ends what it started."""
    before = {
        # A shell starts background jobs with SIGINT ignored.
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(
            signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT)
        ),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
