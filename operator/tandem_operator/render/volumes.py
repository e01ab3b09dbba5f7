"""The volumes and mounts of a service's pods; pure.

They have three origins: Tandem itself, the operator's settings (with the NPU profile), and the
manifest. Kubernetes refuses a name or a path that comes twice; so does this, with its origin.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from posixpath import normpath
from typing import Any, Final

from tandem_operator.render.desired import HostPathNotAllowed, RenderError
from tandem_operator.render.npu_profiles import NpuProfile
from tandem_operator.render.settings import OperatorSettings
from tandem_serve.api.document import API_KEYS_FOLDER
from tandem_serve.api.source import CLAIMS_FOLDER, Source
from tandem_serve.api.spec import InferenceService

HOME: Final = "/home/tandem"
"""Home of the containers' user: a folder of the pod's own, since the image is read-only."""

TEMPORARY: Final = "/tmp"  # noqa: S108  # a volume of the pod's own
"""Folder of Ray's session, HAProxy's files and logs."""

_MODEL: Final = "tandem-model"
_DRAFT: Final = "tandem-draft"
_API_KEYS: Final = "tandem-api-keys"
_HOME: Final = "tandem-home"
_TEMPORARY: Final = "tandem-tmp"
# Added by KubeRay to every pod, and to the head's.
_KUBERAY_PATHS: Final = ("/dev/shm", "/tmp/ray")  # noqa: S108
_KUBERAY_VOLUMES: Final = ("shared-mem", "ray-logs")
# Readable for the owner (root) and, by fsGroup, for the containers' group.
_SECRET_MODE: Final = 0o440


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Volumes of a pod, and their mounts in its containers."""

    volumes: tuple[Mapping[str, Any], ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Volumes and mounts of one origin."""

    origin: str
    volumes: Iterable[Mapping[str, Any]]
    mounts: Iterable[Mapping[str, Any]]


def head_storage(settings: OperatorSettings) -> Storage:
    """Return the storage of the head, which loads no model and checks no key.

    Nor has it the manifest's volumes: they are the replicas', and a claim that one node at a time
    may mount would keep head and replicas from running on two nodes.

    Raises:
        RenderError: a name or a path comes twice.
    """
    return _join([_writable(), _from_settings(settings)])


def worker_storage(
    service: InferenceService, settings: OperatorSettings, profile: NpuProfile | None
) -> Storage:
    """Return the storage of a replica.

    Raises:
        RenderError: a name or a path comes twice, the source is not a volume in Kubernetes, or
            a folder of the node is named where that is not allowed.
    """
    _check_folders(service, settings)
    parts = [
        _writable(),
        *_checkpoints(service),
        _api_keys(service),
        _from_settings(settings),
    ]
    if profile is not None:
        parts.append(
            _Part(
                origin="the NPU profile",
                volumes=profile.volumes,
                mounts=profile.volume_mounts,
            )
        )
    return _join([*parts, _from_manifest(service)])


def _check_folders(service: InferenceService, settings: OperatorSettings) -> None:
    """Refuse folders of the node unless the operator's settings allow them.

    Without this, a user who may write an InferenceService could read any file of a node.
    """
    if settings.allow_host_path:
        return
    for field, source in service.sources:
        if not source.source.startswith("file://"):
            continue
        raise HostPathNotAllowed(
            f"{field} '{source.source}' is a folder of the node, and the operator's "
            "settings do not allow those; name a volume claim (pvc://claim/path), or have "
            "settings.allowHostPath set"
        )
    for volume in service.spec.runtime.volumes:
        if volume.host_path is not None:
            raise HostPathNotAllowed(
                f"spec.runtime.volumes: '{volume.name}' is a folder of the node (hostPath), and "
                "the operator's settings do not allow those; take another kind of volume, or have "
                "settings.allowHostPath set"
            )


def _writable() -> _Part:
    return _Part(
        origin="Tandem",
        volumes=[{"name": _TEMPORARY, "emptyDir": {}}, {"name": _HOME, "emptyDir": {}}],
        mounts=[
            {"name": _TEMPORARY, "mountPath": TEMPORARY},
            {"name": _HOME, "mountPath": HOME},
        ],
    )


def _checkpoints(service: InferenceService) -> Iterator[_Part]:
    """Yield the volumes of the model and of its draft model, which may be in the same claim."""
    mounted = list[tuple[dict[str, Any], str]]()
    for name, (field, source) in zip((_MODEL, _DRAFT), service.sources, strict=False):
        volume, path = _volume_of(field, source)
        if (volume, path) in mounted:
            continue
        mounted.append((volume, path))
        yield _Part(
            origin=field,
            volumes=[{"name": name, **volume}],
            mounts=[{"name": name, "mountPath": path, "readOnly": True}],
        )


def _volume_of(field: str, source: Source) -> tuple[dict[str, Any], str]:
    """Return the volume that a checkpoint is in, and its mount point."""
    if source.claim is not None:
        claim = {"claimName": source.claim, "readOnly": True}
        return {"persistentVolumeClaim": claim}, f"{CLAIMS_FOLDER}/{source.claim}"
    if source.source.startswith("file://"):
        return {"hostPath": {"path": source.path, "type": "Directory"}}, source.path
    raise RenderError(
        f"{field} '{source.source}' is relative to a manifest's file, which Kubernetes does not "
        "know; write file:///absolute/path (a folder of the nodes) or pvc://claim/path"
    )


def _api_keys(service: InferenceService) -> _Part:
    secret = service.spec.server.api_keys_secret
    if secret is None:
        return _Part(origin="spec.server.apiKeysSecret", volumes=[], mounts=[])
    return _Part(
        origin="spec.server.apiKeysSecret",
        volumes=[
            {"name": _API_KEYS, "secret": {"secretName": secret, "defaultMode": _SECRET_MODE}}
        ],
        mounts=[{"name": _API_KEYS, "mountPath": API_KEYS_FOLDER, "readOnly": True}],
    )


def _from_settings(settings: OperatorSettings) -> _Part:
    replica = settings.replica
    return _Part(
        origin="the operator's settings", volumes=replica.volumes, mounts=replica.volume_mounts
    )


def _from_manifest(service: InferenceService) -> _Part:
    runtime = service.spec.runtime
    return _Part(
        origin="spec.runtime",
        volumes=[volume.document() for volume in runtime.volumes],
        mounts=[mount.document() for mount in runtime.volume_mounts],
    )


def _join(parts: list[_Part]) -> Storage:
    names = dict.fromkeys(_KUBERAY_VOLUMES, "KubeRay")
    paths = dict.fromkeys(_KUBERAY_PATHS, "KubeRay")
    for part in parts:
        for volume in part.volumes:
            _reserve_name(names, part.origin, _text(part, "volume", volume, "name"))
        for mount in part.mounts:
            _reserve_path(paths, part.origin, _text(part, "volume mount", mount, "mountPath"))
    for part in parts:
        for mount in part.mounts:
            _check_defined(names, part.origin, _text(part, "volume mount", mount, "name"))
    return Storage(
        volumes=tuple(_stripped(volume) for part in parts for volume in part.volumes),
        mounts=tuple(_stripped(mount) for part in parts for mount in part.mounts),
    )


def _text(part: _Part, what: str, entry: Mapping[str, Any], field: str) -> str:
    value = entry.get(field)
    if not isinstance(value, str) or not value:
        raise RenderError(f"{part.origin} has a {what} without {field}; give it one")
    return value


def _reserve_name(names: dict[str, str], origin: str, name: str) -> None:
    if name in names:
        raise RenderError(
            f"two volumes are called '{name}', one of {names[name]}, one of {origin}; "
            "rename the one in the manifest or in the settings"
        )
    names[name] = origin


def _reserve_path(paths: dict[str, str], origin: str, path: str) -> None:
    path = normpath(path)
    if path in paths:
        raise RenderError(
            f"two volumes are mounted at '{path}', one by {paths[path]}, one by {origin}; "
            "move the one in the manifest or in the settings to another path"
        )
    paths[path] = origin


def _check_defined(names: Mapping[str, str], origin: str, name: str) -> None:
    if name not in names:
        raise RenderError(
            f"{origin} mounts the volume '{name}', which is not defined; "
            f"add it to the volumes or name one of: {', '.join(sorted(names))}"
        )


def _stripped(value: Any) -> Any:
    """Return `value` without None, "", false and [], which Go omits when it writes an object.

    KubeRay writes a RayService back. A value that is gone then would look like drift, every time.
    An empty mapping stays: `emptyDir: {}` means something.
    """
    if isinstance(value, Mapping):
        kept = {name: _stripped(part) for name, part in value.items()}
        return {name: part for name, part in kept.items() if not _is_left_out(part)}
    return [_stripped(part) for part in value] if isinstance(value, list) else value


def _is_left_out(value: Any) -> bool:
    return value is None or value is False or value in ("", [])
