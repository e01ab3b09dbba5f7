"""The Debian packages that a node needs and this machine lacks: into the cache, not the system.

apt works on lists and archives of its own and only downloads; the packages are unpacked, none of
their scripts runs. Only the sandbox sees them.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.cluster.build import locked, make_whole
from tools.cluster.errors import ClusterError
from tools.cluster.paths import Cache
from tools.cluster.progress import Progress

_PACKAGES: Final = (
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "debootstrap",
    "iproute2",
    "iptables",
    "mount",
    # For tests of GCS fault tolerance: a pod of theirs runs it from the node.
    "redis-server",
    "runc",
    "wget",
)
_RECIPE: Final = "1"
_LINKED_FOLDERS: Final = ("bin", "sbin", "lib", "lib64")
# What the package's own script would choose.
_ALTERNATIVES: Final = ("iptables", "iptables-save", "iptables-restore")
_URI: Final = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) \S*$")

Confirm = Callable[[Sequence["Package"]], bool]
"""Says which packages will be downloaded; whether that is agreed to."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package to download."""

    file: str
    size: int

    @property
    def name(self) -> str:
        """The package's name."""
        return self.file.partition("_")[0]


def parse_uris(text: str) -> list[Package]:
    """Output of `apt-get --print-uris`."""
    matches = map(_URI.match, text.splitlines())
    return [Package(match["file"], int(match["size"])) for match in matches if match]


def unpack_packages(cache: Cache, progress: Progress, confirm: Confirm) -> Path:
    """The folder with the unpacked packages, made if it is not there yet.

    Raises:
        ClusterError: apt fails, or the user does not agree.
    """
    root = cache.packages / key(_system(), _installed())
    if not root.is_dir():
        with locked(cache.lock):
            make_whole(root, lambda draft: _fetch(draft, progress, confirm))
    return root


def key(system: str, installed: Sequence[str]) -> str:
    """A short name for what decides which packages are missing."""
    text = "\n".join([_RECIPE, system, *_PACKAGES, "installed:", *sorted(installed)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _system() -> str:
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    named = [line for line in lines if line.startswith(("ID=", "VERSION_ID="))]
    return " ".join([os.uname().machine, *named])


def _installed() -> list[str]:
    """Those of the packages that this machine has itself."""
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *_PACKAGES]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines()]
    return [row[0] for row in rows if row[1:] == ["installed"]]


def _fetch(draft: Path, progress: Progress, confirm: Confirm) -> None:
    apt = draft / ".apt"
    options = _options(apt)
    with progress.phase("ask apt which packages are missing"):
        _apt("update", options)
        listing = _apt("install", [*options, "--print-uris", "-qq", *_PACKAGES])
    packages = parse_uris(listing)
    if packages and not confirm(packages):
        raise ClusterError("not downloaded, as you said; `tandem serve -f` needs none of them")
    with progress.phase(f"download and unpack {len(packages)} Debian packages"):
        _apt("install", [*options, "--download-only", *_PACKAGES])
        _link_folders(draft)
        for archive in sorted((apt / "archives").glob("*.deb")):
            _unpack(archive, draft)
    shutil.rmtree(apt)
    _choose_alternatives(draft / "usr/sbin")


def _options(apt: Path) -> list[str]:
    for folder in ("lists/partial", "archives/partial"):
        (apt / folder).mkdir(parents=True)
    settings = {
        "Dir::State::lists": apt / "lists",
        "Dir::Cache::archives": apt / "archives",
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        # Its own user may not be allowed to look below a home folder.
        "APT::Sandbox::User": "root",
        # The system's lock guards the system, which is not touched.
        "Debug::NoLocking": "1",
    }
    options = [f"--option={name}={value}" for name, value in settings.items()]
    return [*options, "--yes", "--no-install-recommends"]


def _apt(verb: str, options: Sequence[str]) -> str:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    command = ["apt-get", verb, *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
    raise ClusterError(f"`apt-get {verb}` failed: {'; '.join(errors) or done.stderr.strip()}")


def _link_folders(root: Path) -> None:
    """Have what a package puts into `/sbin` land where the host's `/sbin` points to."""
    for name in _LINKED_FOLDERS:
        host = Path("/") / name
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
            (root / host.readlink()).mkdir(parents=True, exist_ok=True)


def _unpack(archive: Path, root: Path) -> None:
    # `dpkg -x` would put a folder in the place of the links.
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(archive)],
        stdout=subprocess.PIPE,
    ) as content:
        subprocess.run(
            ["tar", "--extract", "--keep-directory-symlink", f"--directory={root}"],
            stdin=content.stdout,
            check=True,
        )
    if content.returncode != 0:
        raise ClusterError(f"{archive.name} cannot be unpacked")


def _choose_alternatives(folder: Path) -> None:
    for name in _ALTERNATIVES:
        chosen = folder / name.replace("iptables", "iptables-nft")
        if (chosen.is_symlink() or chosen.exists()) and not (folder / name).exists():
            (folder / name).symlink_to(chosen.name)
            six = name.replace("iptables", "ip6tables")
            (folder / six).symlink_to(six.replace("ip6tables", "ip6tables-nft"))
