"""Checks that a manifest can run on this machine, without Kubernetes."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.pods import RuntimeSpec
from tandem_serve.api.spec import InferenceService
from tandem_serve.commands.common import print_note
from tandem_serve.commands.rank_table import (
    check_cards,
    check_checkpoint,
    check_device,
    check_draft,
    check_ranks,
    note_slow_sizes,
)
from tandem_serve.errors import ServeError
from tandem_serve.local.services import machine_memory

_KUBECTL: Final = "or give the manifest to a Kubernetes with kubectl apply"
_GIB: Final = 2**30
_MIB: Final = 2**20
_PACKAGES: Final = ("ray", "torch")
"""One package of each extra that a replica on this machine needs."""


def check_packages() -> None:
    """Refuse now what would end Ray, or each replica, with a traceback.

    Raises:
        ServeError: the extras `serve` and `engine` are not installed.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ServeError(
            f"A service on this machine needs the package {missing[0]}, which is not installed; "
            "in Tandem's checkout run: pip install '.[serve,engine]'"
        )


def check_runs_locally(service: InferenceService, *, api_keys: str | None) -> None:
    """Refuse a manifest that cannot run on this machine, before Ray starts.

    `api_keys` is the folder that stands for the Secret of API keys, if there is one.

    Raises:
        ManifestError: the manifest needs Kubernetes, or more memory or cards than there are, or
            its folder holds no checkpoint, or one that is not computed or cannot be cut into the
            replica's ranks.
    """
    problems = list(_needs_kubernetes(service, api_keys))
    if problems:
        raise ManifestError(problems)
    _check_memory(service)
    check_cards(service)
    for field, source in service.sources:
        _check_folder(field, Path(source.path))
    check_checkpoint(service)
    check_ranks(service)
    check_device(service)
    check_draft(service)
    note_slow_sizes(service)
    _note_cpus(service)
    if service.spec.runtime != RuntimeSpec():
        print_note("spec.runtime describes pods and is ignored on this machine")


def _needs_kubernetes(service: InferenceService, api_keys: str | None) -> Iterator[str]:
    spec = service.spec
    for field, source in service.sources:
        if source.claim:
            yield (
                f"{field}: '{source.source}' is a volume of Kubernetes; on this machine name a "
                f"folder, file:///absolute/path or ./path, {_KUBECTL}"
            )
    if not service.replicas:
        yield (
            "spec.scaling: without a replica there is nothing to serve on this machine; set "
            f"replicas: 1, {_KUBECTL}"
        )
    if spec.server.api_keys_secret and not api_keys:
        yield (
            f"spec.server.apiKeysSecret: '{spec.server.api_keys_secret}' is a Secret of "
            "Kubernetes; on this machine start the service with tandem serve --api-keys FOLDER, "
            f"a folder of files with a key each, or leave apiKeysSecret out, {_KUBECTL}"
        )


def _check_memory(service: InferenceService) -> None:
    """Refuse a replica that takes more memory than there is: its KV cache would fill it."""
    resources, machine = service.spec.resources, machine_memory()
    if resources.memory_bytes > machine:
        most = f"{machine // _MIB}Mi, less what other processes need"
        text = f"{resources.memory} is more than the {machine / _GIB:.1f}Gi of this machine"
        raise ManifestError([f"spec.resources.memory: {text}; write at most {most}"])


def _note_cpus(service: InferenceService) -> None:
    cpus, here = service.spec.resources.cpu, len(os.sched_getaffinity(0))
    if cpus > here:
        print_note(
            f"spec.resources.cpu {cpus} is more than the {here} CPUs that a process may use on "
            "this machine; a replica computes with those"
        )


def _check_folder(field: str, folder: Path) -> None:
    if not folder.is_dir():
        fault = "no such folder" if not folder.exists() else "not a folder"
    elif not (folder / "config.json").is_file():
        fault = "it has no config.json"
    else:
        return
    way_out = "name the folder of a checkpoint in Hugging Face layout"
    raise ManifestError([f"{field}: {folder}: {fault}; {way_out}"])
