"""Everything a cluster stands on, made once and found again: parts, packages, images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.build import Built, build_modules
from tools.cluster.debian import Confirm, Package, unpack_packages
from tools.cluster.images import make_images
from tools.cluster.paths import cache
from tools.cluster.progress import SILENT, Progress
from tools.cluster.require import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Parts that every cluster of this user shares."""

    built: Built
    packages: Path
    images: tuple[Path, ...]


def agree(_packages: Sequence[Package]) -> bool:
    """Download what is missing."""
    return True


def prepare(progress: Progress = SILENT, confirm: Confirm = agree) -> Prepared:
    """Build, download and pack what is not in the cache yet.

    Raises:
        Unavailable: no cluster can run here.
        ClusterError: something cannot be made.
    """
    require()
    place = cache()
    packages = unpack_packages(place, progress, confirm)
    built = build_modules(place, progress)
    images = make_images(place, built, packages, progress)
    return Prepared(built=built, packages=packages, images=tuple(images))
