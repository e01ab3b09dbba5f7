"""InferenceService of the API server → its desired objects, or the problems in the way; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem_operator import reasons
from tandem_operator.crd.parse import parse_object
from tandem_operator.ray.token import RayToken
from tandem_operator.render.desired import Desired, RenderError
from tandem_operator.render.service import render
from tandem_operator.render.settings import OperatorSettings
from tandem_operator.scaling_law.mode import StatusScaling, desired_replicas
from tandem_operator.status.facts import Problem
from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.spec import InferenceService


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSpec:
    """The desired state of one service."""

    service: InferenceService | None = None
    """The service; None: its spec cannot be parsed."""

    desired: Desired | None = None
    """Everything that it needs; None: it cannot be rendered."""

    problems: tuple[Problem, ...] = ()
    """Reasons why it cannot be parsed or rendered."""


def parse_spec(isvc: Mapping[str, Any], settings: OperatorSettings, token: RayToken) -> ParsedSpec:
    """Parse and render `isvc`; `token` is its Ray's."""
    try:
        service = _scaled(parse_object(isvc), isvc)
    except ManifestError as error:
        return ParsedSpec(
            problems=tuple(Problem(reasons.INVALID_SPEC, text) for text in error.problems)
        )
    try:
        uid = isvc["metadata"]["uid"]
        desired = render(service, uid=uid, settings=settings, token=token)
    except RenderError as error:
        return ParsedSpec(service=service, problems=(Problem(error.reason, str(error)),))
    return ParsedSpec(service=service, desired=desired)


def _scaled(service: InferenceService, isvc: Mapping[str, Any]) -> InferenceService:
    """Return the service with the number of replicas in force, by its spec and its status."""
    status = StatusScaling.read(isvc.get("status", {}))
    return service.scaled_to(desired_replicas(service.spec.scaling, status))
