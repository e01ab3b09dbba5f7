"""One soak: serve, find the highest rate, keep a share of it up, watch, judge."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.service import RunningService, started_service
from benchmarks.soak import plot, replica_stats
from benchmarks.soak.series import Growth, Sample, growth_of
from benchmarks.soak.traffic import Traffic, failures

_SAMPLE_EVERY_S: Final = 5.0
_RATE_S: Final = 15.0
_CONCURRENCY: Final = 32
_CHUNKS: Final = (64, 512, 128, 256)
_MAX_SAID_EVERY_S: Final = 60.0
_IDLE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a soak."""

    duration_s: float
    share: float
    change_every_s: float
    manifest: Path
    seed: int


@dataclass(slots=True)
class Record:
    """Observations of a soak."""

    rate: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    changes_s: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    held_at_the_end: float = 0.0
    """KV blocks that sequences hold after the last request."""


def run(settings: Settings, *, out: Path | None) -> bool:
    """Run a soak and show it.

    Returns:
        True when nothing grew, every request ended as expected, and no block stayed held.
    """
    with started_service(settings.manifest) as service:
        record = asyncio.run(_Soak(settings, service).run())
    growths = growth_of(record.samples)
    _show(record, growths)
    if out is not None:
        _save(record, growths, settings, out)
    return (
        all(growth.is_flat for growth in growths)
        and not failures(record.ends)
        and record.held_at_the_end == 0
    )


class _Soak:
    def __init__(self, settings: Settings, service: RunningService) -> None:
        self._settings = settings
        self._service = service
        self._record = Record()
        self._console = Console(stderr=True, highlight=False)
        self._metrics_url = f"{service.url.removesuffix('/v1')}/metrics"

    async def run(self) -> Record:
        async with httpx.AsyncClient(trust_env=False, timeout=60.0) as client:
            traffic = Traffic(self._service.url, await self._model(client), self._settings.seed)
            highest = await traffic.highest_rate(_RATE_S, concurrency=_CONCURRENCY)
            self._record.rate = rate = self._settings.share * highest
            self._console.print(
                f"At most {highest:.1f} requests/s; {rate:.1f} a second "
                f"for {self._settings.duration_s / 60.0:g} minutes."
            )
            traffic.ends.clear()
            await self._under_load(client, traffic, rate)
            self._record.ends = traffic.ends
            self._record.held_at_the_end = await self._held_when_idle(client)
        return self._record

    async def _model(self, client: httpx.AsyncClient) -> str:
        answer = await client.get(f"{self._service.url}/models")
        name: str = answer.json()["data"][0]["id"]
        return name

    async def _under_load(self, client: httpx.AsyncClient, traffic: Traffic, rate: float) -> None:
        pid = replica_stats.replica_of(self._service.session)
        began = time.monotonic()
        beside = [
            asyncio.create_task(self._watch(client, pid, began)),
            asyncio.create_task(self._change(began)),
        ]
        loading = asyncio.create_task(traffic.run(rate, self._settings.duration_s))
        try:
            done, _ = await asyncio.wait([loading, *beside], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # what ends first is the load, or an error
        finally:
            for task in (loading, *beside):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _watch(self, client: httpx.AsyncClient, pid: int, began: float) -> None:
        said = 0.0
        while True:
            at_s = time.monotonic() - began
            values = await replica_stats.read(client, self._metrics_url, pid)
            self._record.samples.append(Sample(at_s, values))
            if at_s - said >= _MAX_SAID_EVERY_S:
                said = at_s
                line = ", ".join(f"{name} {value:.0f}" for name, value in values.items())
                self._console.print(f"{at_s / 60.0:5.1f} min: {line}")
            await asyncio.sleep(_SAMPLE_EVERY_S)

    async def _change(self, began: float) -> None:
        for chunk in cycle(_CHUNKS):
            await asyncio.sleep(self._settings.change_every_s)

            def smaller(document: dict[str, Any], tokens: int = chunk) -> None:
                fuse = document["spec"]["engine"]["schedule"]["splitFuse"]
                fuse["splitChunkTokens"] = tokens

            await asyncio.to_thread(self._service.apply, smaller)
            self._record.changes_s.append(time.monotonic() - began)

    async def _held_when_idle(self, client: httpx.AsyncClient) -> float:
        """Wait for the requests to end; return the KV blocks that are still held."""
        pid = replica_stats.replica_of(self._service.session)
        deadline = time.monotonic() + _IDLE_S
        while True:
            held = (await replica_stats.read(client, self._metrics_url, pid))["KV blocks held"]
            if held == 0 or time.monotonic() > deadline:
                return held
            await asyncio.sleep(0.2)


def _show(record: Record, growths: Sequence[Growth]) -> None:
    table = Table(title=f"{record.rate:.1f} requests/s, {len(record.changes_s)} live changes")
    for column in ("", "second quarter", "last quarter", "verdict"):
        table.add_column(column, justify="left" if not column else "right")
    for growth in growths:
        verdict = "flat" if growth.is_flat else "GROWS"
        table.add_row(growth.name, f"{growth.early:.1f}", f"{growth.late:.1f}", verdict)
    console = Console(highlight=False)
    console.print(table)
    for end, count in sorted(record.ends.items()):
        console.print(f"{count:8d}  {end}")
    console.print(f"KV blocks held after the last request: {record.held_at_the_end:.0f}")


def _save(record: Record, growths: Sequence[Growth], settings: Settings, out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        document = {
            "requests_per_s": record.rate,
            "share_of_highest": settings.share,
            "ends": dict(record.ends),
            "changes_s": record.changes_s,
            "held_at_the_end": record.held_at_the_end,
            "growth": [
                {"name": growth.name, "early": growth.early, "late": growth.late}
                for growth in growths
            ],
            "samples": [{"at_s": sample.at_s, **sample.values} for sample in record.samples],
        }
        (out / "soak.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"{out} cannot be written: {error.strerror}.") from None
    title = f"{record.rate:.1f} requests/s for {settings.duration_s / 60.0:g} min"
    plot.save_plot(record.samples, record.changes_s, out / "soak.png", title=title)
