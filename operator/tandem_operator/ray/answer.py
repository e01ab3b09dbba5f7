"""Ray's answer to `GET /api/serve/applications/`, read with distrust; pure.

A user who may run pods in a service's namespace controls its dashboard. An answer is therefore
bounded before it is parsed, validated before it is used, and reduced to what the operator reads:
one service can neither block the operator, nor fill its memory, nor put an invalid value into a
status.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from tandem_serve.api.document import DEPLOYMENT

MAX_ANSWER_BYTES: Final = 4 * 2**20
"""Bytes of an answer; that of a thousand replicas has about one million."""

# Of a thousand replicas there are a few thousand and a few ten thousand. Empty containers are what
# blows up most when it is parsed: three bytes become seventy.
_MAX_CONTAINERS: Final = 20_000
_MAX_VALUES: Final = 200_000
_MAX_TEXT_LENGTH: Final = 2**16
_MAX_SETTINGS_LENGTH: Final = 2**16
_MAX_REPLICAS: Final = 4096

_ShortText = Annotated[str, Field(max_length=256)]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]


class InvalidAnswer(Exception):
    """The answer is not one of Ray's; the text is the reason, and quotes nothing of it."""


class _Part(BaseModel):
    """A part of the answer: fields that are not named here are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Replica(_Part):
    replica_id: _ShortText
    state: _ShortText
    pid: Annotated[int, Field(ge=0, le=2**32)] | None = None


class _Deployment(_Part):
    target_num_replicas: _Count | None = None
    message: str | None = None
    # One error is enough: each is kept, with what it is about.
    replicas: Annotated[list[_Replica], FailFast(), Field(max_length=_MAX_REPLICAS)] = []


class _DeployedConfig(_Part):
    """A deployment as it was handed to Ray."""

    name: _ShortText
    num_replicas: _Count | None = None
    user_config: dict[str, Any] | None = None


class _Application(_Part):
    status: _ShortText
    message: str | None = None


_Known = TypeVar("_Known", bound=_Part)


def read_answer(body: bytes, service: str) -> dict[str, Any]:
    """Return the part of Ray's answer about `service`, in the form of the answer.

    Raises:
        InvalidAnswer: the body is not an answer of Ray's.
    """
    answer = _mapping(_parse(body), "it")
    application = _mapping(answer.get("applications", {}), "applications").get(service)
    if application is None:
        return {"applications": {}}
    return {"applications": {service: _application(_mapping(application, "the application"))}}


def _parse(body: bytes) -> Any:
    if body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS or body.count(b",") > _MAX_VALUES:
        raise InvalidAnswer(f"it has more than {_MAX_CONTAINERS} parts or {_MAX_VALUES} values")
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidAnswer("it is nested too deeply") from None
    except ValueError:
        raise InvalidAnswer("it is not JSON") from None


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which JSON does not have and Python would take."""
    raise ValueError(name)


def _application(application: Mapping[str, Any]) -> dict[str, Any]:
    known = _checked(_Application, application, "the application")
    return {
        "status": known.status,
        "message": _text(known.message),
        "deployed_app_config": {
            "deployments": _deployed_config(application.get("deployed_app_config"))
        },
        "deployments": _deployments(application.get("deployments")),
    }


def _deployments(deployments: Any) -> dict[str, Any]:
    deployment = _mapping(deployments or {}, "deployments").get(DEPLOYMENT)
    if deployment is None:
        return {}
    known = _checked(_Deployment, _mapping(deployment, "the deployment"), "the deployment")
    return {DEPLOYMENT: known.model_dump() | {"message": _text(known.message)}}


def _deployed_config(config: Any) -> list[dict[str, Any]]:
    """Return the service's deployment as it was handed to Ray, in a list; empty: there is none."""
    parts = _mapping(config or {}, "deployed_app_config").get("deployments") or ()
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        raise InvalidAnswer("its deployed_app_config.deployments is not a list")
    for part in parts:
        if isinstance(part, Mapping) and part.get("name") == DEPLOYMENT:
            known = _checked(_DeployedConfig, part, "the deployed configuration")
            _check_size(known.user_config)
            return [known.model_dump(exclude_unset=True)]
    return []


def _check_size(settings: Any) -> None:
    try:
        is_long = len(json.dumps(settings)) > _MAX_SETTINGS_LENGTH
    except (RecursionError, ValueError):
        is_long = True
    if is_long:
        raise InvalidAnswer(f"its user_config is longer than {_MAX_SETTINGS_LENGTH} characters")


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidAnswer(f"{what} should be a mapping and has another type")
    return value


def _checked(model: type[_Known], value: Mapping[str, Any], what: str) -> _Known:
    try:
        return model.model_validate(value)
    except (ValidationError, RecursionError):
        raise InvalidAnswer(f"{what} has a field of another type or size than Ray's") from None


def _text(text: str | None) -> str:
    """Return text that JSON and logs can hold; of a long one both ends, which have the reason."""
    text = (text or "").replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    if len(text) <= _MAX_TEXT_LENGTH:
        return text
    half = _MAX_TEXT_LENGTH // 2
    return f"{text[:half]}\n…\n{text[-half:]}"
