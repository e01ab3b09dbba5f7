"""Container images without a registry: docker archives, packed here and kept in the cache."""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.cluster.build import Built, drafted, locked
from tools.cluster.config import PAUSE_IMAGE
from tools.cluster.errors import ClusterError
from tools.cluster.modules import KUBERAY, Module, version_of
from tools.cluster.paths import GO_MODULES, Cache
from tools.cluster.progress import Progress

BASE_IMAGE: Final = "localhost/tandem/base:1"
# Python's own libraries come with python3, those of wheels are libstdc++ and libgomp.
BASE_PACKAGES: Final = (
    "ca-certificates",
    "iproute2",
    "libgomp1",
    "libstdc++6",
    "procps",
    "python3",
    "wget",
)
WITHOUT_ROOT: Final = "65532:65532"
_RECIPE: Final = "1"
_USER: Final = "tandem"
_USER_ID: Final = 1000
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
# Of no use to a program, and to be imported at every start.
_NEEDLESS: Final = (
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)


@dataclass(frozen=True, slots=True)
class Image:
    """Configuration of an image."""

    reference: str
    entrypoint: tuple[str, ...] = ()
    user: str = ""


def pinned_version(module: Module) -> str:
    """The version of a module that its go.mod pins."""
    go_mod = (GO_MODULES / module.name / "go.mod").read_text(encoding="utf-8")
    return version_of(go_mod, module.source)


def program_image(name: str, module: Module, path: str) -> Image:
    """The image of one program at `path`, with the version of its module, and without root."""
    reference = f"localhost/tandem/{name}:{pinned_version(module)}"
    return Image(reference, (path,), user=WITHOUT_ROOT)


def kuberay_image() -> Image:
    """The image of KubeRay's operator."""
    return program_image("kuberay", KUBERAY, "/kuberay-operator")


def make_images(cache: Cache, built: Built, packages: Path, progress: Progress) -> list[Path]:
    """The archives of all images, made if they are not there yet.

    Raises:
        ClusterError: an image cannot be made.
    """
    cache.images.mkdir(parents=True, exist_ok=True)
    programs = built.programs
    return [
        pack_program(cache, Image(PAUSE_IMAGE, ("/pause",)), programs["pause"]),
        pack_program(cache, kuberay_image(), programs["kuberay-operator"]),
        _base_image(cache, packages, progress),
    ]


def pack_program(cache: Cache, image: Image, program: Path) -> Path:
    """The archive of an image that holds `program` alone, at the path of its entrypoint."""
    # The folder of a program carries the key of its build.
    key = hashlib.sha256(f"{_RECIPE} {image}".encode()).hexdigest()[:8]
    archive = cache.images / f"{program.parent.parent.name}-{program.name}-{key}.tar"
    if archive.exists():
        return archive
    with locked(cache.lock), drafted(cache.images) as draft:
        root = draft / "root"
        place = root / image.entrypoint[0].removeprefix("/")
        place.parent.mkdir(parents=True)
        shutil.copy(program, place)
        _pack(root, image, archive)
    return archive


def _base_image(cache: Cache, packages: Path, progress: Progress) -> Path:
    mirror, suite = _mirror()
    text = "\n".join([_RECIPE, mirror, suite, *BASE_PACKAGES])
    archive = cache.images / f"base-{hashlib.sha256(text.encode()).hexdigest()[:16]}.tar"
    if archive.exists():
        return archive
    with (
        locked(cache.lock),
        progress.phase(f"make the base image from {suite} (debootstrap)"),
        drafted(cache.images) as draft,
    ):
        if archive.exists():  # another process was faster
            return archive
        root = draft / "root"
        _bootstrap(root, mirror, suite, packages)
        _prepare(root)
        _pack(root, Image(BASE_IMAGE), archive)
    return archive


def _mirror() -> tuple[str, str]:
    """Return the source of this machine's own packages, and the name of its release."""
    release = dict(
        line.partition("=")[::2]
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    )
    suite = release.get("VERSION_CODENAME", "").strip('"')
    done = subprocess.run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI) $(CODENAME) $(COMPONENT)",
            "Created-By: Packages",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        mirror, codename, component = line.split()
        if (codename, component) == (suite, "main"):
            return mirror, suite
    raise ClusterError(f"apt knows no mirror of {suite or 'this release'}; add one to its sources")


def _bootstrap(root: Path, mirror: str, suite: str, packages: Path) -> None:
    search = [packages / folder for folder in ("usr/sbin", "usr/bin")]
    libraries = packages.glob("usr/lib/*-linux-gnu*")
    environment = os.environ | {
        "PATH": ":".join(
            [os.environ.get("PATH", os.defpath), "/usr/sbin:/sbin", *map(str, search)]
        ),
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "TMPDIR": str(root.parent),
    }
    scripts = packages / "usr/share/debootstrap"
    if scripts.is_dir():
        environment["DEBOOTSTRAP_DIR"] = str(scripts)
    # Namespaces of its own, so that what it mounts and starts ends with it.
    command = [
        *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
        *("debootstrap", "--variant=minbase", f"--include={','.join(BASE_PACKAGES)}"),
        *(suite, str(root), mirror),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()
        raise ClusterError(f"debootstrap failed: {' / '.join(lines[-3:])}")


def _prepare(root: Path) -> None:
    """Make the root slim, and usable for pods that do not run as root."""
    for folder in _NEEDLESS:
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True, exist_ok=True)
    # The interpreter of development often lies below /root, and is mounted there.
    (root / "root").chmod(0o755)
    number = f"{_USER_ID}:{_USER_ID}"
    home = root / "home" / _USER
    for file, line in (
        ("passwd", f"{_USER}:x:{number}::/home/{_USER}:/bin/bash"),
        ("group", f"{_USER}:x:{_USER_ID}:"),
        ("shadow", f"{_USER}:*:19000:0:99999:7:::"),
    ):
        with (root / "etc" / file).open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
    home.mkdir(parents=True)
    os.chown(home, _USER_ID, _USER_ID)


def _pack(root: Path, image: Image, archive: Path) -> None:
    """Write `root` as a docker archive of one layer."""
    layer = root.parent / "layer.tar"
    subprocess.run(
        ["tar", "--numeric-owner", "--sort=name", f"--directory={root}", "-cf", layer, "."],
        check=True,
    )
    with layer.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    settings = image_config(image, digest, _ARCHITECTURES[platform.machine()])
    content = json.dumps(settings).encode()
    name = hashlib.sha256(content).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": [image.reference], "Layers": [f"{digest}/layer.tar"]}]
    draft = root.parent / "archive.tar"
    with tarfile.open(draft, "w") as tar:
        _add(tar, name, content)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        tar.add(layer, f"{digest}/layer.tar")
    draft.rename(archive)


def image_config(image: Image, layer: str, architecture: str) -> dict[str, Any]:
    """The configuration of an image of one layer, given the layer's SHA-256."""
    return {
        "architecture": architecture,
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        "config": {"Entrypoint": list(image.entrypoint), "Env": [_PATH], "User": image.user},
    }


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
