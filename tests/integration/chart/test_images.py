"""The Containerfiles, built for real where buildah is.

TANDEM_IMAGE_BASE names an image with Python, venv and pip in place of the one from Docker Hub;
TANDEM_TEST_REPLICA_IMAGE=1 builds the replicas' image, too: 6 GB and some minutes.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BASE = os.environ.get("TANDEM_IMAGE_BASE", "docker.io/library/python:3.11-slim")
BUILDAH = shutil.which("buildah") or ""
# What pip on this machine uses: its settings, and the authorities that it trusts.
USUAL = ("/etc/pip.conf", "/etc/ssl/certs")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(not BUILDAH, reason="buildah is not on the PATH"),
]


def buildah(*args: str) -> str:
    done = subprocess.run([BUILDAH, *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def base() -> str:
    """The image that both start from."""
    pulled = subprocess.run(
        [BUILDAH, "pull", "--policy=missing", BASE], capture_output=True, text=True, check=False
    )
    if pulled.returncode:
        pytest.skip(f"{BASE} cannot be pulled; name another one in TANDEM_IMAGE_BASE")
    return BASE


def build(name: str, *args: str) -> str:
    """Build a Containerfile; return the image."""
    mounts = [f"--volume={path}:{path}:ro" for path in USUAL if Path(path).exists()]
    return buildah(
        *("build", "--quiet", "--isolation=chroot", "--network=host", *mounts, *args),
        *(f"--file={ROOT / 'containers' / name}", str(ROOT)),
    ).splitlines()[-1]


@pytest.fixture(scope="module")
def operator(base: str) -> Iterator[str]:
    """A container of the operator's image."""
    yield from container(build("operator.Containerfile", f"--build-arg=BASE={base}"))


@pytest.fixture(scope="module")
def replica(base: str) -> Iterator[str]:
    """A container of the replicas' image."""
    if "TANDEM_TEST_REPLICA_IMAGE" not in os.environ:
        pytest.skip("TANDEM_TEST_REPLICA_IMAGE=1 is not set")
    index = os.environ.get("TANDEM_TORCH_INDEX", "")
    arguments = (f"--build-arg=BASE={base}", f"--build-arg=TORCH_INDEX={index}")
    yield from container(build("replica.Containerfile", *arguments))


def container(image: str) -> Iterator[str]:
    name = buildah("from", "--pull-never", image)
    yield name
    buildah("rm", name)
    buildah("rmi", "--force", image)


def run(container: str, *command: str) -> str:
    """Run a command in the container, as its user, and return its output."""
    return buildah("run", "--isolation=chroot", container, "--", *command)


def test_the_operator_starts_as_another_user_than_root(operator: str) -> None:
    config = json.loads(buildah("inspect", operator))["OCIv1"]["config"]

    assert config["User"] == "65532:65532"
    assert "--config" in run(operator, *config["Entrypoint"], "--help")


def test_the_operators_image_has_no_torch_ray_pip_or_compiler(operator: str) -> None:
    find = (
        "import importlib.util, json, shutil\n"
        "modules = [m for m in ('torch', 'ray', 'pip') if importlib.util.find_spec(m)]\n"
        "print(json.dumps(modules + [p for p in ('gcc', 'cc') if shutil.which(p)]))"
    )

    assert json.loads(run(operator, "python3", "-c", find)) == []


def test_the_replicas_image_has_what_kuberay_and_ray_call(replica: str) -> None:
    look = "cd ~ && touch writable && command -v bash wget ps ray && id -u"
    import_all = "import ray, torch, tandem_serve.app, tandem_engine.build"

    assert run(replica, "bash", "-c", look).splitlines()[-1] == "1000"
    run(replica, "python3", "-c", import_all)
