"""An object of the API server → InferenceService, or every problem that it has, one line each.

The CRD refuses all of this already. It is checked again because an object may be older than the
CRD, and because nothing that Kubernetes would refuse in a pod may be rendered.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from tandem_operator.crd.cluster_formats import SERVICE_NAME, SOURCES
from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.pods import RuntimeSpec
from tandem_serve.api.problems import known_part, unknown_fields, validation_problems
from tandem_serve.api.spec import InferenceService

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
    if problem := SERVICE_NAME.problem_with(service.name):
        yield f"metadata.name: {problem}"
    for field, source in service.sources:
        for problem in filter(None, (form.problem_with(source.source) for form in SOURCES)):
            yield f"{field}: {problem}"
    yield from _pod_problems(service.spec.runtime)


def _pod_problems(runtime: RuntimeSpec) -> Iterator[str]:
    path = "spec.runtime"
    yield from _twice(f"{path}.env", [variable.name for variable in runtime.env])
    yield from _twice(f"{path}.imagePullSecrets", runtime.image_pull_secrets)


def _twice(path: str, names: Iterable[str]) -> Iterator[str]:
    for name, times in Counter(names).items():
        if times > 1:
            yield f"{path}: '{name}' is given {times} times; keep one"
