"""The real Prometheus and its promtool, built from Go modules, for tests of rules and queries."""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.patience import HANG_S
from tools.cluster import unavailable
from tools.cluster.build import build_modules
from tools.cluster.modules import PROMETHEUS
from tools.cluster.paths import cache
from tools.cluster.progress import SILENT


def programs() -> dict[str, Path]:
    """prometheus and promtool, built if they are not there yet; skips where Go is missing."""
    missing = unavailable()
    if missing:
        pytest.skip(missing)
    return build_modules(cache(), SILENT, (PROMETHEUS,)).programs


@dataclass(frozen=True)
class Promtool:
    """The real promtool."""

    binary: Path

    def run(self, *args: str | Path) -> tuple[int, str]:
        """Run it; return its exit code, and what it said."""
        done = subprocess.run(
            [self.binary, *map(str, args)], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr


@dataclass(frozen=True)
class Prometheus:
    """A Prometheus that runs."""

    url: str
    http: httpx.Client

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The vector or scalar of an expression now, as a list of samples."""
        found = self._data("query", query=expr)
        if found["resultType"] == "scalar":
            return [{"metric": {}, "value": found["result"]}]
        result: list[dict[str, Any]] = found["result"]
        return result

    def get(self, path: str, **params: str) -> Any:
        """The data of an answer of the API."""
        return self._data(path, **params)

    def _data(self, path: str, **params: str) -> Any:
        answer = self.http.get(f"{self.url}/api/v1/{path}", params=params)
        document = answer.json()
        assert document["status"] == "success", (document.get("error"), params)
        return document["data"]


@contextmanager
def running(
    binary: Path,
    folder: Path,
    port: int,
    *,
    scrapes: Sequence[Mapping[str, Any]],
    rules: Mapping[str, Any],
    interval: str = "1s",
) -> Iterator[Prometheus]:
    """A Prometheus in a folder of its own, with these targets and rules."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(dict(rules)))
    config = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [dict(scrape) for scrape in scrapes],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(process, url, folder / "log")
        with httpx.Client(timeout=HANG_S, trust_env=False) as http:
            yield Prometheus(url, http)
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + HANG_S
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"{url}/-/ready", trust_env=False, timeout=HANG_S).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
