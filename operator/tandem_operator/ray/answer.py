"""Ray's answer to `GET /api/serve/applications/`, read with distrust; pure.

Whoever may run pods in a service's namespace decides what stands behind its dashboard. An answer is
therefore bounded before it is parsed, checked before it is believed, and cut down to what the
operator looks at: one service can neither hold the operator up, nor fill its memory, nor get a
value into a status that is none.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from tandem_serve.api.document import DEPLOYMENT

LONGEST_ANSWER: Final = 4 * 2**20
"""Bytes of an answer; that of a thousand replicas has about one million."""

# Of a thousand replicas there are a few thousand and a few ten thousand. Empty containers are what
# blows up most when it is parsed: three bytes become seventy.
_MOST_CONTAINERS: Final = 20_000
_MOST_VALUES: Final = 200_000
_LONGEST_TEXT: Final = 2**16
_LONGEST_SETTINGS: Final = 2**16
_MOST_REPLICAS: Final = 4096

_Word = Annotated[str, Field(max_length=256)]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]


class InvalidAnswer(Exception):
    """The answer is none of Ray's; the text says why, and quotes nothing of it."""


class _Part(BaseModel):
    """A part of the answer: what is not named here is passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Replica(_Part):
    replica_id: _Word
    state: _Word
    pid: Annotated[int, Field(ge=0, le=2**32)] | None = None


class _Deployment(_Part):
    target_num_replicas: _Count | None = None
    message: str | None = None
    # One error is enough: each is kept, with what it is about.
    replicas: Annotated[list[_Replica], FailFast(), Field(max_length=_MOST_REPLICAS)] = []


class _DeployedConfig(_Part):
    """What Ray was told of a deployment."""

    name: _Word
    num_replicas: _Count | None = None
    user_config: dict[str, Any] | None = None


class _Application(_Part):
    status: _Word
    message: str | None = None


_Known = TypeVar("_Known", bound=_Part)


def read_answer(body: bytes, service: str) -> dict[str, Any]:
    """The part of Ray's answer that speaks of `service`, in the form of the answer.

    Raises:
        InvalidAnswer: it is not what Ray answers.
    """
    answer = _mapping(_parse(body), "it")
    application = _mapping(answer.get("applications", {}), "applications").get(service)
    if application is None:
        return {"applications": {}}
    return {"applications": {service: _application(_mapping(application, "the application"))}}


def _parse(body: bytes) -> Any:
    if body.count(b"[") + body.count(b"{") > _MOST_CONTAINERS or body.count(b",") > _MOST_VALUES:
        raise InvalidAnswer(f"it has more than {_MOST_CONTAINERS} parts or {_MOST_VALUES} values")
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidAnswer("it is nested too deep") from None
    except ValueError:
        raise InvalidAnswer("it is not JSON") from None


def _refuse_constant(name: str) -> NoReturn:
    """NaN and the infinities are no JSON; Python would take them."""
    raise ValueError(name)


def _application(found: Mapping[str, Any]) -> dict[str, Any]:
    known = _checked(_Application, found, "the application")
    return {
        "status": known.status,
        "message": _text(known.message),
        "deployed_app_config": {"deployments": _deployed_config(found.get("deployed_app_config"))},
        "deployments": _deployments(found.get("deployments")),
    }


def _deployments(found: Any) -> dict[str, Any]:
    deployment = _mapping(found or {}, "deployments").get(DEPLOYMENT)
    if deployment is None:
        return {}
    known = _checked(_Deployment, _mapping(deployment, "the deployment"), "the deployment")
    return {DEPLOYMENT: known.model_dump() | {"message": _text(known.message)}}


def _deployed_config(found: Any) -> list[dict[str, Any]]:
    """What Ray was told of our deployment, as a list of one; empty: of another one, or nothing."""
    parts = _mapping(found or {}, "deployed_app_config").get("deployments") or ()
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        raise InvalidAnswer("its deployed_app_config.deployments is no list")
    for part in parts:
        if isinstance(part, Mapping) and part.get("name") == DEPLOYMENT:
            known = _checked(_DeployedConfig, part, "what Ray was told")
            _check_size(known.user_config)
            return [known.model_dump(exclude_unset=True)]
    return []


def _check_size(settings: Any) -> None:
    try:
        is_long = len(json.dumps(settings)) > _LONGEST_SETTINGS
    except (RecursionError, ValueError):
        is_long = True
    if is_long:
        raise InvalidAnswer(f"its user_config is longer than {_LONGEST_SETTINGS} characters")


def _mapping(found: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise InvalidAnswer(f"where {what} should be a mapping, there is another type")
    return found


def _checked(model: type[_Known], found: Mapping[str, Any], what: str) -> _Known:
    try:
        return model.model_validate(found)
    except (ValidationError, RecursionError):
        raise InvalidAnswer(f"{what} has a field of another type or size than Ray's") from None


def _text(text: str | None) -> str:
    """A text that every JSON and every log takes; of a long one both ends, where Ray says why."""
    text = (text or "").replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n…\n{text[-half:]}"
