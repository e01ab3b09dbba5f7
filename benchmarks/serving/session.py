"""One benchmark from its settings to its files: find a server, measure, show, write."""

import asyncio
import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from rich.console import Console

from benchmarks.serving.client import Client
from benchmarks.serving.endpoint import Endpoint, find_endpoint
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.machine import git_commit, machine_facts
from benchmarks.serving.plan import Load, loads_of
from benchmarks.serving.plot import save_plot
from benchmarks.serving.progress import Progress
from benchmarks.serving.prompts import PromptSource
from benchmarks.serving.report import result_document, show
from benchmarks.serving.run import carry_out
from benchmarks.serving.service import running_service
from benchmarks.serving.settings import EndpointSettings, LoadSettings, Promises
from benchmarks.serving.statistics import Measurement, Summary, summarize

_FILE_WIDTH: Final = 140


def measure(
    asked: LoadSettings, server: EndpointSettings, promises: Promises, *, out: Path | None
) -> None:
    """Carry a benchmark out.

    Raises:
        BenchmarkError: it cannot be, or no request of a case succeeded.
    """
    loads_of(asked, max_model_len=None)  # What makes no sense is refused before a server starts.
    if out is not None:
        _make_folder(out)
    facts: dict[str, Any] = {
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "machine": machine_facts(),
    }
    with _ended_by_sigterm(), _server(server) as url:
        endpoint = find_endpoint(url, server)
        loads = loads_of(asked, max_model_len=endpoint.max_model_len)
        seen = asyncio.run(_carry_out_all(loads, endpoint, asked, server))
    summaries = [summarize(measurement, promises) for measurement in seen]
    show(summaries, _console())
    if out is not None:
        facts["server"] = _server_facts(endpoint, server)
        settings = _settings_facts(asked, promises, server)
        _write(out, summaries, result_document(summaries, facts=facts, settings=settings))
    _check_success(summaries)


def _server(server: EndpointSettings) -> AbstractContextManager[str]:
    return running_service(server.manifest) if server.url is None else nullcontext(server.url)


async def _carry_out_all(
    loads: Sequence[Load], endpoint: Endpoint, asked: LoadSettings, server: EndpointSettings
) -> list[Measurement]:
    prompts = PromptSource(endpoint.token_ids, Random())  # noqa: S311  # load, not secrets
    console = Console(stderr=True, highlight=False)
    with (
        Client(endpoint, prompts, timeout_s=server.timeout_s) as client,
        Progress(console) as progress,
    ):
        return [
            await carry_out(load, client, num_warmup=asked.num_warmup, progress=progress)
            for load in loads
        ]


def _console() -> Console:
    """Standard output; a file or pipe is as wide as the tables are."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_FILE_WIDTH)


def _make_folder(folder: Path) -> None:
    """Find out before the measurement that its result can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchmarkError(f"The folder {folder} cannot be made: {error.strerror}.") from None


def _write(folder: Path, summaries: Sequence[Summary], document: dict[str, Any]) -> None:
    result = json.dumps(document, indent=2, ensure_ascii=False, default=str)
    machine = document["machine"]
    title = f"{document['server']['model']} on {machine['cpu_model']}, {machine['num_cores']} cores"
    try:
        (folder / "result.json").write_text(result + "\n", encoding="utf-8")
        save_plot(summaries, folder / "result.png", title=f"{title}, {document['begun'][:10]}")
    except OSError as error:
        raise BenchmarkError(f"{folder} cannot be written to: {error.strerror}.") from None


def _server_facts(endpoint: Endpoint, server: EndpointSettings) -> dict[str, Any]:
    return {
        "url": endpoint.base_url,
        "model": endpoint.model,
        "max_model_len": endpoint.max_model_len,
        "started_from": str(server.manifest) if server.url is None else None,
    }


def _settings_facts(
    asked: LoadSettings, promises: Promises, server: EndpointSettings
) -> dict[str, Any]:
    load = {
        "cases": [str(case) for case in asked.cases],
        # JSON has no infinity.
        "rate": None if asked.rate is None else f"{asked.rate:g}",
    }
    return {
        "load": asdict(asked) | load,
        "promises": asdict(promises),
        "timeout_s": server.timeout_s,
    }


def _check_success(summaries: Sequence[Summary]) -> None:
    for summary in summaries:
        if summary.num_failed == summary.num_requests:
            raise BenchmarkError(f"No request of {summary.name} succeeded.")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
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
