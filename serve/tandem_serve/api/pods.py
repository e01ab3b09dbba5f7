"""The pods that replicas run in, as a manifest describes them; Kubernetes' own names."""

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from tandem_engine.api.model import Model

_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ENV_NAME: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
# What the replica and Ray read; a manifest that set them would break its own service.
_RESERVED_ENV: Final = ("RAY_", "TANDEM_")
ENGINE_ENV: Final = ("TANDEM_KERNELS", "TANDEM_PIN", "TANDEM_THREADS")
"""What the engine reads of it that a manifest has no field for; these may be set."""


def _object_name(value: str) -> str:
    if not _OBJECT_NAME.fullmatch(value):
        raise ValueError(
            f"'{value}' is not the name of an object; use up to 63 lower-case letters, digits "
            "and '-', a letter or digit first and last"
        )
    return value


ObjectName = Annotated[str, AfterValidator(_object_name)]
"""Name of a Kubernetes object in the service's namespace."""


class EnvVar(Model):
    """A variable of the environment of every pod."""

    name: str
    """Name of the variable."""

    value: str = ""
    """Its value."""

    @field_validator("name")
    @classmethod
    def _is_free(cls, value: str) -> str:
        if not _ENV_NAME.fullmatch(value):
            raise ValueError(
                f"'{value}' is not the name of a variable; use letters, digits, '-', '.' and '_', "
                "no digit first"
            )
        if value.startswith(_RESERVED_ENV) and value not in ENGINE_ENV:
            raise ValueError(
                f"'{value}' is set by Tandem; names that begin with {' or '.join(_RESERVED_ENV)} "
                f"are taken, but for {', '.join(ENGINE_ENV)}"
            )
        return value


class Toleration(Model):
    """A taint of nodes that the pods may run on all the same."""

    key: str | None = None
    """Key of the taint; absent, with operator Exists, means every taint."""

    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal: key and value must match. Exists: the key alone."""

    value: str | None = None
    """Value of the taint, for operator Equal."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; absent means every effect."""

    toleration_seconds: int | None = None
    """How long a NoExecute taint is borne; absent means for ever."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(
                f"value '{self.value}' has no meaning with operator Exists; leave it out or set "
                "operator: Equal"
            )
        if self.operator == "Equal" and not self.key:
            raise ValueError("key is missing; operator Equal needs one, or set operator: Exists")
        return self


class RuntimeSpec(Model):
    """The pods that replicas run in."""

    image: Annotated[str, Field(min_length=1)] | None = None
    """Image of the replicas; absent takes the operator's."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; absent takes the operator's choice."""

    image_pull_secrets: list[ObjectName] = Field(default_factory=list, max_length=16)
    """Secrets with the credentials of image registries."""

    env: list[EnvVar] = Field(default_factory=list, max_length=128)
    """Further variables of the environment."""

    volumes: list[dict[str, Any]] = Field(default_factory=list, max_length=64)
    """Further volumes, as in a pod."""

    volume_mounts: list[dict[str, Any]] = Field(default_factory=list, max_length=64)
    """Where the containers see those volumes, as in a container."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that a node must have."""

    tolerations: list[Toleration] = Field(default_factory=list, max_length=32)
    """Taints of nodes that the pods may run on all the same."""
