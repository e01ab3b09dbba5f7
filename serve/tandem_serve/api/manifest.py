"""YAML text → InferenceService, or every problem that it has, one line each."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pydantic import ValidationError

from tandem_serve.api.problems import (
    ProblemsFound,
    known_part,
    unknown_fields,
    validation_problems,
)
from tandem_serve.api.source import Source
from tandem_serve.api.spec import API_VERSION, KIND, InferenceService
from tandem_serve.api.yaml_text import YamlError, read_documents

_KUBERNETES_WRITES: Final = {
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
}
"""Fields of the metadata that `kubectl get -o yaml` shows beside those of the manifest."""


class ManifestError(ProblemsFound):
    """A manifest cannot be used."""


def load_manifest(path: Path) -> InferenceService:
    """The InferenceService of the YAML file at `path`; its relative source becomes absolute.

    Raises:
        ManifestError: the file cannot be read, or what it holds cannot be served.
    """
    try:
        data = path.read_bytes()
        folder = path.resolve().parent
    except FileNotFoundError:
        raise ManifestError([f"{path}: no such file"]) from None
    except IsADirectoryError:
        raise ManifestError([f"{path}: is a folder; name the YAML file in it"]) from None
    except OSError as error:
        raise ManifestError([f"{path}: cannot be read: {error.strerror}"]) from None
    except ValueError:  # a NUL, or what is no UTF-8
        raise ManifestError([f"{str(path)!r}: is not the name of a file"]) from None
    return decode_manifest(data, folder=folder, name=str(path))


def decode_manifest(data: bytes, *, folder: Path, name: str) -> InferenceService:
    """The InferenceService of the UTF-8 text `data`, which messages call `name`.

    Raises:
        ManifestError: it is not text, or what it holds cannot be served.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ManifestError([f"{name}: is not UTF-8 text (byte {error.start})"]) from None
    return parse_manifest(text, folder=folder, name=name)


def parse_manifest(text: str, *, folder: Path, name: str = "") -> InferenceService:
    """The InferenceService of the YAML `text`; a relative source starts at `folder`.

    What is no YAML is called by `name`, if there is one.

    Raises:
        ManifestError: the text is not YAML, or what it holds cannot be served.
    """
    document = _choose_service(_read_documents(text, name))
    _check_type(document)
    service = _validate(_as_written(document))
    return _resolve_source(service, folder)


def _read_documents(text: str, name: str) -> list[Any]:
    try:
        return read_documents(text)
    except YamlError as error:
        raise ManifestError([f"{name}: {error}" if name else str(error)]) from None


def _choose_service(documents: list[Any]) -> Mapping[str, Any]:
    """The one InferenceService among the documents of a file."""
    if not documents:
        raise ManifestError(
            ["the manifest is empty; see docs/reference/manifest.md for the smallest one"]
        )
    if len(documents) > 1:
        documents = _only_services(documents)
    document = documents[0]
    if not isinstance(document, Mapping):
        raise ManifestError(
            [f"the manifest is {_kind_of(document)}; it must be a mapping with kind: {KIND}"]
        )
    return document


def _only_services(documents: list[Any]) -> list[Any]:
    services = [
        document
        for document in documents
        if isinstance(document, Mapping) and document.get("kind") == KIND
    ]
    if len(services) == 1:
        return services
    if services:
        raise ManifestError(
            [f"{len(services)} documents are of kind {KIND}; put each into a file of its own"]
        )
    raise ManifestError([f"none of the {len(documents)} documents is of kind {KIND}; add one"])


def _check_type(document: Mapping[str, Any]) -> None:
    """Refuse another kind or version before its fields are checked."""
    problems = [*_type_problems(document, "kind", KIND)]
    problems += _type_problems(document, "apiVersion", API_VERSION)
    if problems:
        raise ManifestError(problems)


def _type_problems(document: Mapping[str, Any], field: str, expected: str) -> Iterator[str]:
    if field not in document:
        yield f"{field}: is missing; write {field}: {expected}"
    elif document[field] != expected:
        yield f"{field}: '{document[field]}' is not supported; allowed: {expected}"


def _as_written(document: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an object that its author wrote, when it comes from a Kubernetes."""
    written = {name: value for name, value in document.items() if name != "status"}
    metadata = document.get("metadata")
    if isinstance(metadata, Mapping):
        kept = {key: metadata[key] for key in metadata if key not in _KUBERNETES_WRITES}
        written["metadata"] = kept
    return written


def _validate(document: Mapping[str, Any]) -> InferenceService:
    unknown = list(unknown_fields(InferenceService, document))
    try:
        service = InferenceService.model_validate(
            known_part(InferenceService, document), by_alias=True, by_name=False
        )
    except ValidationError as error:
        raise ManifestError(unknown + validation_problems(InferenceService, error)) from None
    if unknown:
        raise ManifestError(unknown)
    return service


def _resolve_source(service: InferenceService, folder: Path) -> InferenceService:
    """`service` with its sources as absolute file URLs; those in a volume claim stay."""
    document = service.manifest()
    spec = document["spec"]
    _resolve(spec["model"], service.spec.model, folder)
    draft = service.spec.engine.speculation.draft
    if draft is not None:
        _resolve(spec["engine"]["speculation"]["draft"], draft, folder)
    return InferenceService.model_validate(document)


def _resolve(document: dict[str, Any], source: Source, folder: Path) -> None:
    if source.claim is None:
        path = (folder / source.path).resolve()
        document["source"] = f"file://{quote(str(path))}"


def _kind_of(value: object) -> str:
    return "a list" if isinstance(value, list) else f"the text '{value}'"
