"""An object of the API server → InferenceService, or every problem that it has, one line each.

The CRD refuses all of this already. It is checked again because an object may be older than the
CRD, and because nothing that Kubernetes would refuse in a pod may be rendered.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from tandem_operator.crd.rules import WAY_OUT
from tandem_operator.k8s.names import MAX_NAME_LENGTH
from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.pods import RuntimeSpec
from tandem_serve.api.problems import known_part, unknown_fields, validation_problems
from tandem_serve.api.spec import InferenceService, ModelSpec

_METADATA: Final = ("name", "namespace", "labels", "annotations")


def parse_object(obj: Mapping[str, Any]) -> InferenceService:
    """Parse `obj`, plain JSON data as the API server sends it.

    Of its metadata only name, namespace, labels and annotations are taken, and its status is not.

    Raises:
        ManifestError: the object cannot be served; `problems` has a sentence for each reason.
    """
    service = _validate(_known_part(obj))
    if problems := list(_cluster_problems(service)):
        raise ManifestError(problems)
    return service


def _known_part(obj: Mapping[str, Any]) -> dict[str, Any]:
    metadata = obj.get("metadata") or {}
    document = {name: obj[name] for name in ("apiVersion", "kind", "spec") if name in obj}
    return document | {"metadata": {key: metadata[key] for key in _METADATA if key in metadata}}


def _validate(document: Mapping[str, Any]) -> InferenceService:
    problems = list(unknown_fields(InferenceService, document))
    try:
        service = InferenceService.model_validate(
            known_part(InferenceService, document), by_alias=True, by_name=False
        )
    except ValidationError as error:
        problems += validation_problems(InferenceService, error)
        raise ManifestError(problems) from None
    if problems:
        raise ManifestError(problems)
    return service


def _cluster_problems(service: InferenceService) -> Iterator[str]:
    """Yield the problems that only Kubernetes has."""
    if len(service.name) > MAX_NAME_LENGTH:
        yield (
            f"metadata.name: '{service.name}' has {len(service.name)} characters; "
            f"use up to {MAX_NAME_LENGTH}, as KubeRay adds endings to it"
        )
    yield from _source_problems(service.spec.model)
    yield from _pod_problems(service.spec.runtime)


def _source_problems(model: ModelSpec) -> Iterator[str]:
    if model.claim:
        return
    if not model.source.startswith("file://"):
        yield (
            f"spec.model.source: '{model.source}' is relative to a manifest, whose folder "
            f"Kubernetes does not know; write {WAY_OUT}"
        )
    elif ".." in model.path.split("/") or not model.path.strip("/"):
        yield (
            f"spec.model.source: '{model.source}' names no folder of the node; "
            "write file:///absolute/path, without '..'"
        )


def _pod_problems(runtime: RuntimeSpec) -> Iterator[str]:
    path = "spec.runtime"
    yield from _twice(f"{path}.env", [variable.name for variable in runtime.env])
    yield from _twice(f"{path}.imagePullSecrets", runtime.image_pull_secrets)


def _twice(path: str, names: Iterable[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{path}: '{name}' is given {times} times; keep one"
