"""The pods that replicas run in, as a manifest describes them; Kubernetes' own names."""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from tandem_engine.api.checks import Check, Value, Written
from tandem_engine.api.constraints import MappingFormat, TextFormat
from tandem_engine.api.model import Model, field_names

SUBDOMAIN: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Names with points in them, up to 253 characters: those of most objects of Kubernetes."""

LONGEST_SUBDOMAIN: Final = 253
LONGEST_LABEL: Final = 63
LONGEST_ENV: Final = 2**16
"""Characters of all variables together. They stand in a service's RayService three times, and etcd
takes no object of more than 1.5 MiB."""

_LONGEST_PATH: Final = 4096
# What the replica and Ray read; a manifest that set them would break its own service.
_RESERVED_ENV: Final = ("RAY_", "TANDEM_")
REDIS_ENV: Final = ("REDIS_PASSWORD", "REDIS_USERNAME")
"""Variables that KubeRay sets in the head; it refuses a RayCluster that sets them itself."""
ENGINE_ENV: Final = ("TANDEM_KERNELS", "TANDEM_PIN", "TANDEM_THREADS")
"""Variables of the engine that a manifest has no field for; these may be set."""

_OBJECT_NAME: Final = TextFormat(
    matches=("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",),
    problem="is not the name of an object; use up to 63 lower-case letters, digits and '-', "
    "a letter or digit first and last",
    longest=LONGEST_LABEL,
)
_SECRET_NAME: Final = TextFormat(
    matches=(SUBDOMAIN,),
    problem=f"is not the name of an object; use up to {LONGEST_SUBDOMAIN} lower-case letters, "
    "digits, '-' and '.', a letter or digit first and last and beside each '.'",
    longest=LONGEST_SUBDOMAIN,
)
_SECRET_KEY: Final = TextFormat(
    matches=("[-._a-zA-Z0-9]{1,253}",),
    problem="is not a key of a Secret; use up to 253 letters, digits, '-', '.' and '_'",
    longest=253,
)
_LABEL_TEXT: Final = "[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
# A domain may have 253 characters; a text without a '/' has none.
_SHORT_DOMAIN: Final = rf"(?s)([^/]{{1,{LONGEST_SUBDOMAIN}}}/.*|[^/]*)"
_KEY_PROBLEM: Final = (
    "use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last, and before "
    "it, if at all, a domain in lower-case letters and a '/'"
)
_VALUE_PROBLEM: Final = (
    "use up to 63 letters, digits, '-', '_' and '.', a letter or digit first and last, or nothing"
)
_LABELS: Final = MappingFormat(
    keys=TextFormat(
        matches=(f"({SUBDOMAIN}/)?{_LABEL_TEXT}", _SHORT_DOMAIN),
        problem=f"is not the key of a label; {_KEY_PROBLEM}",
    ),
    values=TextFormat(
        matches=(f"({_LABEL_TEXT})?",),
        problem=f"is not the value of a label; {_VALUE_PROBLEM}",
        longest=LONGEST_LABEL,
    ),
)
_TAINT_KEY: Final = TextFormat(
    matches=(f"(({SUBDOMAIN}/)?{_LABEL_TEXT})?", _SHORT_DOMAIN),
    problem=f"is not the key of a taint; {_KEY_PROBLEM}",
    longest=LONGEST_SUBDOMAIN + 1 + LONGEST_LABEL,
)
_TAINT_VALUE: Final = TextFormat(
    matches=(f"({_LABEL_TEXT})?",),
    problem=f"is not the value of a taint; {_VALUE_PROBLEM}",
    longest=LONGEST_LABEL,
)
_ENV_NAME: Final = TextFormat(
    matches=("[-._a-zA-Z][-._a-zA-Z0-9]*",),
    problem="is not the name of a variable; use letters, digits, '-', '.' and '_', no digit first",
    longest=256,
)
_FREE_ENV: Final = TextFormat(
    excludes=(rf"(?s)({'|'.join(_RESERVED_ENV)}).*",),
    exceptions=ENGINE_ENV,
    problem=f"is set by Tandem; names that begin with {' or '.join(_RESERVED_ENV)} are taken, "
    f"but for {', '.join(ENGINE_ENV)}",
)
_NOT_OF_REDIS: Final = TextFormat(
    excludes=(f"({'|'.join(REDIS_ENV)})",),
    problem="is set by KubeRay; name the Secret of the Redis in gcsFaultToleranceOptions, "
    "or leave the variable out",
)
_MOUNT_PATH: Final = TextFormat(
    matches=(r"(/[^/:\x00-\x1f]+)+",),
    excludes=(r"(?s).*/\.\.?(/.*)?",),
    problem="is not a mount path; write an absolute path below /, "
    "without ':', '.', '..' and a '/' at its end, such as /data",
    longest=_LONGEST_PATH,
)
_SUB_PATH: Final = TextFormat(
    matches=(r"[^/\x00-\x1f][^\x00-\x1f]*",),
    excludes=(r"(?s)(.*/)?\.\.(/.*)?",),
    exceptions=("",),
    problem="is not a path within a volume; write one without a '/' before it and without '..', "
    "such as models/a",
    longest=_LONGEST_PATH,
)
_HOST_LABEL: Final = "[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?"
PORT: Final = (
    "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
)
"""Pattern of a TCP port."""
# Ray takes rediss:// (TLS), too, but its certificates would have to be files in the head's image.
_REDIS_ADDRESS: Final = TextFormat(
    matches=(rf"(redis://)?{_HOST_LABEL}(\.{_HOST_LABEL})*:{PORT}",),
    problem="is not the address of a Redis; write host:port or redis://host:port, such as "
    "redis.storage.svc:6379",
    longest=270,
)

ObjectName = Annotated[str, AfterValidator(_OBJECT_NAME)]
"""Name of a Kubernetes object in the service's namespace."""

SecretName = Annotated[str, AfterValidator(_SECRET_NAME)]
"""Name of a Secret in the service's namespace."""

VolumeSource = dict[str, Any]
"""The fields of a kind of volume; Kubernetes checks them when it makes a pod."""


def _check_unique(field: str, names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{field}: '{name}' is given {times} times; keep one")


class ClaimSource(Model):
    """A PersistentVolumeClaim as a volume."""

    claim_name: SecretName
    """Claim, in the service's namespace."""

    read_only: bool | None = None
    """True: no pod may write to it."""


class Volume(Model):
    """A volume, as in a pod; of the kinds that Kubernetes has not replaced by `csi`."""

    name: ObjectName
    """Name of the volume, by which volumeMounts ask for it."""

    config_map: VolumeSource | None = None
    """A ConfigMap."""

    csi: VolumeSource | None = None
    """A volume of a CSI driver, for this pod alone."""

    downward_api: Annotated[VolumeSource | None, Field(alias="downwardAPI")] = None
    """Fields of the pod, as files."""

    empty_dir: VolumeSource | None = None
    """A folder that lives as long as the pod."""

    ephemeral: VolumeSource | None = None
    """A claim that lives as long as the pod."""

    fc: VolumeSource | None = None
    """A disk on Fibre Channel."""

    host_path: VolumeSource | None = None
    """A file or folder of the node; it has to be allowed."""

    image: VolumeSource | None = None
    """The files of an image."""

    iscsi: VolumeSource | None = None
    """A disk on iSCSI."""

    nfs: VolumeSource | None = None
    """A share of an NFS server."""

    persistent_volume_claim: ClaimSource | None = None
    """A PersistentVolumeClaim."""

    projected: VolumeSource | None = None
    """Several sources in one folder."""

    secret: VolumeSource | None = None
    """A Secret."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        kinds = field_names(type(self)).items()
        sources = [getattr(self, field) for name, field in kinds if name != "name"]
        if sum(source is not None for source in sources) != 1:
            raise ValueError(ONE_SOURCE % self.name)
        return self

    def document(self) -> dict[str, Any]:
        """The volume as a pod has it, without what the manifest does not write."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


VOLUME_SOURCES: Final = tuple(sorted(field_names(Volume).keys() - {"name"}))
"""Names of the kinds of volumes."""

ONE_SOURCE: Final = (
    f"the volume '%s' is not of one source; write one of {', '.join(VOLUME_SOURCES)}"
)
"""Message for a volume of another number, with its name."""


class VolumeMount(Model):
    """Mount point of a volume, as in a container."""

    name: ObjectName
    """Name of one of the volumes."""

    mount_path: Annotated[str, AfterValidator(_MOUNT_PATH)]
    """Absolute path at which the containers see it."""

    sub_path: Annotated[str, AfterValidator(_SUB_PATH)] | None = None
    """Path within the volume; absent: all of it."""

    sub_path_expr: Annotated[str, AfterValidator(_SUB_PATH)] | None = None
    """The same with variables of the environment, $(NAME)."""

    read_only: bool | None = None
    """True: the containers may not write there."""

    recursive_read_only: Literal["Disabled", "IfPossible", "Enabled"] | None = None
    """Read-only also for what is mounted below it; absent means Disabled."""

    mount_propagation: Literal["None", "HostToContainer"] | None = None
    """Mounts that come later on the node are seen with HostToContainer; absent means None."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            field="subPathExpr",
            refused=Written("subPath") & Written("subPathExpr"),
            problem="subPathExpr '{subPathExpr}' stands beside subPath '{subPath}'; write one",
        ),
    )

    def document(self) -> dict[str, Any]:
        """The mount as a container has it, without what the manifest does not write."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class EnvVar(Model):
    """A variable of the environment of every pod."""

    name: Annotated[
        str, AfterValidator(_ENV_NAME), AfterValidator(_FREE_ENV), AfterValidator(_NOT_OF_REDIS)
    ]
    """Name of the variable."""

    value: Annotated[str, Field(max_length=32768)] = ""
    """Its value."""


class Toleration(Model):
    """A taint of nodes that the pods may run on all the same."""

    key: Annotated[str, AfterValidator(_TAINT_KEY)] | None = None
    """Key of the taint; absent, with operator Exists, means every taint."""

    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal: key and value must match. Exists: the key alone."""

    value: Annotated[str, AfterValidator(_TAINT_VALUE)] | None = None
    """Value of the taint, for operator Equal."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; absent means every effect."""

    toleration_seconds: Annotated[int, Field(ge=0)] | None = None
    """Seconds for which a NoExecute taint is tolerated; absent means for ever."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            field="value",
            refused=Value("operator").equals("Exists")
            & Written("value")
            & ~Value("value").equals(""),
            problem="value '{value}' has no meaning with operator Exists; leave it out or set "
            "operator: Equal",
        ),
        Check(
            field="key",
            refused=Value("operator").equals("Equal") & (~Written("key") | Value("key").equals("")),
            problem="key is missing; operator Equal needs one, or set operator: Exists",
        ),
        Check(
            field="tolerationSeconds",
            refused=Written("tolerationSeconds") & ~Value("effect").equals("NoExecute"),
            problem="tolerationSeconds {tolerationSeconds} has no meaning without effect "
            "NoExecute; set effect: NoExecute or leave tolerationSeconds out",
        ),
    )


class SecretKeySelector(Model):
    """One value of a Secret."""

    name: SecretName
    """Secret, in the service's namespace."""

    key: Annotated[str, AfterValidator(_SECRET_KEY)]
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

    redis_address: Annotated[str, AfterValidator(_REDIS_ADDRESS)]
    """Its address: host:port or redis://host:port."""

    redis_username: RedisCredential | None = None
    """The user; absent means Redis' default user."""

    redis_password: RedisCredential | None = None
    """The password; absent: the Redis needs none."""


class RuntimeSpec(Model):
    """The pods that replicas run in."""

    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
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

    node_selector: Annotated[dict[str, str], AfterValidator(_LABELS)] = Field(
        default_factory=dict, max_length=64
    )
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

    @model_validator(mode="after")
    def _mounts_fit(self) -> Self:
        volumes = [volume.name for volume in self.volumes]
        _check_unique("volumes", volumes)
        _check_unique("volumeMounts", (mount.mount_path for mount in self.volume_mounts))
        for mount in self.volume_mounts:
            if mount.name not in volumes:
                raise ValueError(
                    f"volumeMounts names the volume '{mount.name}', which is none of volumes; "
                    "add it there, or name one that is"
                )
        return self
