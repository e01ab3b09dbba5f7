"""The pods that replicas run in, as a manifest describes them; Kubernetes' own names."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from tandem_engine.api.model import Model

_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Names with points in them, up to 253 characters: those of most objects of Kubernetes."""

LABEL_KEY: Final = rf"({SUBDOMAIN}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{{0,61}}[A-Za-z0-9])?"
"""Keys of labels and taints, but for the 253 characters of what stands before the slash."""

LABEL_VALUE: Final = r"([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?"
"""Values of labels and taints; empty is one."""

MOUNT_PATH: Final = r"(/[^/:\x00-\x1f]+)+"
"""Paths at which a volume may be mounted, but for `.` and `..`."""

LONGEST_SUBDOMAIN: Final = 253
LONGEST_ENV: Final = 2**16
"""Characters of all variables together. They stand in a service's RayService three times, and etcd
takes no object of more than 1.5 MiB."""

_ENV_NAME: Final = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
# What the replica and Ray read; a manifest that set them would break its own service.
_RESERVED_ENV: Final = ("RAY_", "TANDEM_")
LABEL_KEY_FORM: Final = (
    "use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last, and before "
    "it, if at all, a domain in lower-case letters and a '/'"
)
LABEL_VALUE_FORM: Final = (
    "use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last, or nothing"
)
REDIS_ENV: Final = ("REDIS_PASSWORD", "REDIS_USERNAME")
"""Variables that KubeRay sets in the head; it refuses a RayCluster that sets them itself."""
ENGINE_ENV: Final = ("TANDEM_KERNELS", "TANDEM_PIN", "TANDEM_THREADS")
"""Variables of the engine that a manifest has no field for; these may be set."""

_HOST_LABEL: Final = "[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?"
# Ray takes rediss:// (TLS), too, but its certificates would have to be files in the head's image.
_PORT: Final = (
    "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
REDIS_ADDRESS: Final = rf"(redis://)?{_HOST_LABEL}(\.{_HOST_LABEL})*:{_PORT}"
"""The address of a Redis, as a regular expression."""

SECRET_KEY: Final = "[-._a-zA-Z0-9]{1,253}"  # noqa: S105  # what may be one
"""A key of a Secret, as a regular expression."""


def _object_name(value: str) -> str:
    if not _OBJECT_NAME.fullmatch(value):
        raise ValueError(
            f"'{value}' is not the name of an object; use up to 63 lower-case letters, digits "
            "and '-', a letter or digit first and last"
        )
    return value


ObjectName = Annotated[str, AfterValidator(_object_name)]
"""Name of a Kubernetes object in the service's namespace."""


def _secret_name(value: str) -> str:
    if len(value) > LONGEST_SUBDOMAIN or not re.fullmatch(SUBDOMAIN, value):
        raise ValueError(
            f"'{value}' is not the name of an object; use up to {LONGEST_SUBDOMAIN} lower-case "
            "letters, digits, '-' and '.', a letter or digit first and last and beside each '.'"
        )
    return value


SecretName = Annotated[str, AfterValidator(_secret_name)]
"""Name of a Secret in the service's namespace."""


def _is_label_key(value: str) -> bool:
    prefix, slash, _ = value.partition("/")
    is_short = not slash or len(prefix) <= LONGEST_SUBDOMAIN
    return is_short and re.fullmatch(LABEL_KEY, value) is not None


def _named(part: dict[str, Any]) -> dict[str, Any]:
    """A volume, or a mount of one, by its name."""
    name = part.get("name")
    if name is None:
        raise ValueError("name is missing; it has no default")
    if not isinstance(name, str) or not _OBJECT_NAME.fullmatch(name):
        raise ValueError(
            f"name '{name}' is not the name of an object; use up to 63 lower-case letters, digits "
            "and '-', a letter or digit first and last"
        )
    return part


def _has_mount_path(mount: dict[str, Any]) -> dict[str, Any]:
    path = mount.get("mountPath")
    if path is None or path == "":
        raise ValueError("mountPath is missing; it has no default")
    if (
        not isinstance(path, str)
        or not re.fullmatch(MOUNT_PATH, path)
        or {".", ".."} & set(path.split("/"))
    ):
        raise ValueError(
            f"mountPath '{path}' is not a mount path; write an absolute path below /, "
            "without ':', '.', '..' and a '/' at its end, such as /data"
        )
    return mount


def _check_unique(field: str, names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{field}: '{name}' is given {times} times; keep one")


Volume = Annotated[dict[str, Any], AfterValidator(_named)]
"""A volume, as in a pod."""

VolumeMount = Annotated[dict[str, Any], AfterValidator(_named), AfterValidator(_has_mount_path)]
"""Mount point of a volume, as in a container."""


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
        if value in REDIS_ENV:
            raise ValueError(
                f"'{value}' is set by KubeRay; name the Secret of the Redis in "
                "gcsFaultToleranceOptions, or leave the variable out"
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

    toleration_seconds: Annotated[int, Field(ge=0)] | None = None
    """Seconds for which a NoExecute taint is tolerated; absent means for ever."""

    @field_validator("key")
    @classmethod
    def _is_taint_key(cls, value: str | None) -> str | None:
        if value and not _is_label_key(value):
            raise ValueError(f"'{value}' is not the key of a taint; {LABEL_KEY_FORM}")
        return value

    @field_validator("value")
    @classmethod
    def _is_taint_value(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(LABEL_VALUE, value):
            raise ValueError(f"'{value}' is not the value of a taint; {LABEL_VALUE_FORM}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(
                f"value '{self.value}' has no meaning with operator Exists; leave it out or set "
                "operator: Equal"
            )
        if self.operator == "Equal" and not self.key:
            raise ValueError("key is missing; operator Equal needs one, or set operator: Exists")
        seconds = self.toleration_seconds
        if seconds is not None and self.effect != "NoExecute":
            raise ValueError(
                f"tolerationSeconds {seconds} has no meaning without effect NoExecute; "
                "set effect: NoExecute or leave tolerationSeconds out"
            )
        return self


def _redis_address(value: str) -> str:
    if not re.fullmatch(REDIS_ADDRESS, value):
        raise ValueError(
            f"'{value}' is not the address of a Redis; write host:port or redis://host:port, such "
            "as redis.storage.svc:6379"
        )
    return value


def _secret_key(value: str) -> str:
    if not re.fullmatch(SECRET_KEY, value):
        raise ValueError(
            f"'{value}' is not a key of a Secret; use up to 253 letters, digits, '-', '.' and '_'"
        )
    return value


class SecretKeySelector(Model):
    """One value of a Secret."""

    name: SecretName
    """Secret, in the service's namespace."""

    key: Annotated[str, AfterValidator(_secret_key)]
    """Key of the value."""


class RedisCredentialSource(Model):
    """Source of a credential."""

    secret_key_ref: SecretKeySelector
    """The value of a Secret that it is."""


class RedisCredential(Model):
    """A user's name or password, which no manifest shows."""

    value_from: RedisCredentialSource
    """Source of the value."""


class GcsFaultToleranceOptions(Model):
    """A Redis (or Valkey) in which Ray's control plane keeps what it knows.

    KubeRay's `externalStorageNamespace` is left to KubeRay, which takes the id of the RayCluster:
    the two clusters of a replacement must not share one.
    """

    redis_address: Annotated[str, AfterValidator(_redis_address)]
    """Its address: host:port or redis://host:port."""

    redis_username: RedisCredential | None = None
    """The user; absent means Redis' default user."""

    redis_password: RedisCredential | None = None
    """The password; absent: the Redis needs none."""


class RuntimeSpec(Model):
    """The pods that replicas run in."""

    image: Annotated[str, Field(min_length=1)] | None = None
    """Image of the replicas; absent takes the operator's."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; absent takes the operator's choice."""

    image_pull_secrets: list[SecretName] = Field(default_factory=list, max_length=16)
    """Secrets with the credentials of image registries."""

    env: list[EnvVar] = Field(default_factory=list, max_length=128)
    """Further variables of the environment."""

    volumes: list[Volume] = Field(default_factory=list, max_length=64)
    """Further volumes of the replicas' pods, as in a pod."""

    volume_mounts: list[VolumeMount] = Field(default_factory=list, max_length=64)
    """Mount points of those volumes in the replicas, as in a container."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that the replicas' nodes must have."""

    tolerations: list[Toleration] = Field(default_factory=list, max_length=32)
    """Taints of nodes that the replicas may run on all the same."""

    gcs_fault_tolerance_options: GcsFaultToleranceOptions | None = None
    """A Redis that outlives the Ray head, by which replicas serve on while the head is replaced;
    absent takes the operator's, if it has one."""

    @field_validator("env")
    @classmethod
    def _fits_an_object(cls, value: list[EnvVar]) -> list[EnvVar]:
        length = sum(len(variable.name) + len(variable.value) for variable in value)
        if length > LONGEST_ENV:
            raise ValueError(
                f"the variables have {length} characters together, of {LONGEST_ENV} at most; "
                "mount a ConfigMap or a Secret for what is longer"
            )
        return value

    @field_validator("node_selector")
    @classmethod
    def _are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for key, label in value.items():
            if not _is_label_key(key):
                raise ValueError(f"'{key}' is not the key of a label; {LABEL_KEY_FORM}")
            if not re.fullmatch(LABEL_VALUE, label):
                raise ValueError(f"'{label}' is not the value of a label; {LABEL_VALUE_FORM}")
        return value

    @model_validator(mode="after")
    def _mounts_fit(self) -> Self:
        volumes = [one["name"] for one in self.volumes]
        _check_unique("volumes", volumes)
        _check_unique("volumeMounts", (one["mountPath"] for one in self.volume_mounts))
        for mount in self.volume_mounts:
            if mount["name"] not in volumes:
                raise ValueError(
                    f"volumeMounts names the volume '{mount['name']}', which is none of volumes; "
                    "add it there, or name one that is"
                )
        return self
