"""Paths of the caches: one folder for each user, which a fresh clone finds again."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]
"""The repository."""
GO_MODULES: Final = Path(__file__).resolve().parent / "go"
"""One Go module a part."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The per-user cache of clusters."""

    folder: Path

    @property
    def parts(self) -> Path:
        """Built Go parts, a folder a module and key."""
        return self.folder / "parts"

    @property
    def packages(self) -> Path:
        """Unpacked Debian packages, a folder a key."""
        return self.folder / "packages"

    @property
    def images(self) -> Path:
        """Docker archives."""
        return self.folder / "images"

    @property
    def running(self) -> Path:
        """One folder a cluster that runs."""
        return self.folder / "running"

    @property
    def lock(self) -> Path:
        """Lock of the process that builds."""
        return self.folder / "build.lock"

    @property
    def start_lock(self) -> Path:
        """Lock of the process that claims a name."""
        return self.folder / "start.lock"


def cache(environment: Mapping[str, str] = os.environ) -> Cache:
    """The cache that the XDG rules give."""
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~")) / ".cache"
    return Cache(Path(home).expanduser().absolute() / "tandem/cluster")
