"""Reads what a replica holds: its process from /proc, its KV blocks from its metrics."""

import re
from pathlib import Path
from typing import Final

import httpx

from benchmarks.serving.errors import BenchmarkError
from benchmarks.soak.series import QUANTITIES
from tandem_serve.processes import GONE, command_line, session_members

_TITLE: Final = "ray::ServeReplica"
_HELD: Final = re.compile(
    r'^tandem_kv_cache_blocks_by_state\{[^}]*state="held"[^}]*\} (\S+)$', re.MULTILINE
)


def replica_of(session: int) -> int:
    """The pid of the service's one replica.

    Raises:
        BenchmarkError: there is not exactly one.
    """
    pids = [
        process.pid
        for process in session_members(session)
        if " ".join(command_line(process.pid)).startswith(_TITLE)
    ]
    if len(pids) != 1:
        raise BenchmarkError(f"The service has {len(pids)} replicas; the soak watches exactly 1.")
    return pids[0]


async def read(client: httpx.AsyncClient, metrics_url: str, pid: int) -> dict[str, float]:
    """Return the quantities as they are now.

    Raises:
        BenchmarkError: the replica's process has ended.
    """
    process = Path(f"/proc/{pid}")
    try:
        status = (process / "status").read_text(encoding="utf-8")
        descriptors = len(list((process / "fd").iterdir()))
    except GONE:
        raise BenchmarkError(f"The replica (process {pid}) has ended under load.") from None
    held = _HELD.search((await client.get(metrics_url)).text)
    values = (
        _field(status, "VmRSS") / 1024.0,
        float(descriptors),
        _field(status, "Threads"),
        float(held[1]) if held else 0.0,
    )
    return dict(zip(QUANTITIES, values, strict=True))


def _field(status: str, name: str) -> float:
    return float(status.split(f"{name}:")[1].split(maxsplit=1)[0])
