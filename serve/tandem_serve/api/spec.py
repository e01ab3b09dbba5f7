"""The InferenceService: one model, how its engine runs, and how many replicas there are.

Names, ranges and defaults of the engine's and the server's settings are MindIE's.
A field that does not work yet is not here, unless MindIE has it and needs a device that is not
built yet for it.
"""

import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator

from tandem_engine.api.checks import (
    Check,
    Constant,
    Expression,
    Minus,
    Value,
    Written,
)
from tandem_engine.api.config import (
    MAX_EOS_TOKEN_IDS,
    EosTokenId,
    GenerationConfig,
    MaxInputTokenLen,
    MaxSeqLen,
    Quantization,
    ScheduleConfig,
    is_mix,
)
from tandem_engine.api.constraints import TextFormat
from tandem_engine.api.device_facts import Device
from tandem_engine.api.micro_batches import quantization_checks
from tandem_engine.api.model import Model
from tandem_engine.api.rewrites import resolve_schedule, schedule_document, with_slo_defaults
from tandem_engine.api.slo import Slo
from tandem_serve.api.engine_spec import EngineSpec
from tandem_serve.api.observability import ObservabilitySpec
from tandem_serve.api.pods import ObjectName, RuntimeSpec, SecretName
from tandem_serve.api.quantity import Memory, parse_memory
from tandem_serve.api.resource_checks import MEMORY_CHECKS, NPU_CHECKS, RANK_CHECKS
from tandem_serve.api.scaling import ScalingSpec
from tandem_serve.api.source import Source
from tandem_serve.api.speculation_spec import DRAFT_SOURCE

GROUP: Final = "serving.tandem.dev"
API_VERSION: Final = f"{GROUP}/v1alpha1"
KIND: Final = "InferenceService"

_DNS_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_MODEL_NAME: Final = TextFormat(
    matches=(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,254}[A-Za-z0-9])?",),
    problem="is not a model name; use up to 256 letters, digits, '-', '.' and '_', "
    "a letter or digit first and last",
    longest=256,
)
Origin = Annotated[
    str,
    AfterValidator(
        TextFormat(
            matches=(r"(\*|https?://[-.a-z0-9]+(:[0-9]{1,5})?)",),
            problem="is not the origin of a web page; write https:// or http://, its host in "
            "lower case and, unless it is the usual one, its port, without a path; or '*' for all",
            longest=256,
        )
    ),
]
PROGRESS_DEADLINE_S: Final = 600
"""Default of spec.progressDeadlineSeconds."""


class Metadata(Model):
    """Identity of the service."""

    name: str
    """Name of the service: up to 63 lower-case letters, digits and `-`, a letter first."""

    namespace: ObjectName | None = None
    """Kubernetes namespace; without Kubernetes it has no meaning."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Labels, as on any Kubernetes object."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations, as on any Kubernetes object."""

    @field_validator("name")
    @classmethod
    def _is_dns_label(cls, value: str) -> str:
        if not _DNS_LABEL.fullmatch(value):
            raise ValueError(
                f"'{value}' is not a DNS label; use up to 63 lower-case letters, digits and '-', "
                "a letter first and no '-' last"
            )
        return value


class ModelSpec(Source):
    """The model: where its files are and how long its requests may be."""

    name: Annotated[str, AfterValidator(_MODEL_NAME)] | None = None
    """Name under which requests ask for the model; absent means metadata.name."""

    quantization: Quantization = "auto"
    """Linear layers in 8 bits (W8A8). auto: as the checkpoint is; w8a8: a float checkpoint is
    quantised as it is read; none: a checkpoint in 8 bits is refused."""

    eos_token_ids: (
        Annotated[list[EosTokenId], Field(min_length=1, max_length=MAX_EOS_TOKEN_IDS)] | None
    ) = None
    """Ids of the tokens that end an answer, in place of those that the checkpoint's files name;
    absent means all that config.json, generation_config.json and the tokenizer name."""

    generation_config: GenerationConfig = "auto"
    """Sampling parameters that hold where a request is silent. auto: those of the checkpoint's
    generation_config.json; none: the defaults of the HTTP interface."""

    split_special_tokens: bool = True
    """Encode special tokens that messages spell as text, so that only the chat template writes
    special tokens; false: they become the tokens."""

    max_seq_len: MaxSeqLen | None = None
    """Tokens of prompt and output of one request together; absent means the model's own limit, or
    as many as the replica's memory holds."""

    max_input_token_len: MaxInputTokenLen | None = None
    """Tokens of a prompt; absent means maxSeqLen − 1."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            field="maxInputTokenLen",
            refused=Written("maxSeqLen")
            & Written("maxInputTokenLen")
            & (Value("maxInputTokenLen") >= Value("maxSeqLen")),
            problem="maxInputTokenLen {maxInputTokenLen} leaves no room for a new token in "
            "maxSeqLen {maxSeqLen}; lower it to at most {largest} or raise maxSeqLen",
            values={"largest": Minus(Value("maxSeqLen"), Constant(1))},
        ),
    )


class ServerSpec(Model):
    """Limits of one replica's HTTP server."""

    max_link_num: Annotated[int, Field(ge=1, le=4096)] = 1000
    """Sequences (every choice and beam of every prompt) that are processed at once; twice as many
    more may wait, the next is refused."""

    max_request_length: Annotated[int, Field(ge=1, le=100)] = 4
    """Size of a request's body in MB. 4 hold a context of 262144 tokens as ids or as escaped text;
    MindIE's default is 40."""

    e2e_timeout: Annotated[int, Field(ge=1, le=65535, alias="e2eTimeout")] = 600
    """Seconds from the first byte of a request to the last of its answer; then it ends with an
    error, and nothing more is computed for it. A caller may ask for less (X-Request-Timeout)."""

    strict: bool = False
    """Refuse requests with fields that are not known. false: they are ignored, and the answer's
    header x-tandem-ignored-fields names them."""

    allowed_origins: Annotated[list[Origin], Field(max_length=32)] = Field(default_factory=list)
    """Origins of web pages whose scripts may call the service (CORS), such as
    https://chat.example.com; "*" is every one. Absent: none."""

    api_keys_secret: SecretName | None = None
    """Kubernetes Secret, in the service's namespace, whose values are the API keys; requests then
    need one of them as `Authorization: Bearer`. Absent: requests need no key."""


class ResourcesSpec(Model):
    """Resources of one replica."""

    cpu: Annotated[int, Field(ge=1)] = 1
    """Compute threads of a replica; at least as many as it has ranks."""

    memory: Memory = "4Gi"
    """Memory of a replica, weights and KV cache included, as a Kubernetes quantity."""

    npu: Annotated[int, Field(ge=0, le=64)] = 0
    """NPU cards of a replica, one for each rank; Ray chooses which (MindIE npuDeviceIds)."""

    npu_profile: ObjectName | None = None
    """Kind of NPU node, one of the operator's profiles; absent takes the operator's default."""

    @property
    def memory_bytes(self) -> int:
        """Memory of a replica in bytes."""
        return parse_memory(self.memory)

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            field="npuProfile",
            refused=Written("npuProfile") & Value("npu").equals(0),
            problem="npuProfile '{npuProfile}' has no meaning while npu is 0; set npu to the cards "
            "of a replica or leave npuProfile out",
        ),
    )


_HAS_TARGET: Final = Written("slo.ttft") | Written("slo.tpot")
_SCHEDULE: Final = "engine.schedule."
_WROTE_TEMPLATE: Final = Written(f"{_SCHEDULE}templateType")


def _needs_standard(name: str, refused: Expression, shown: str = "") -> Check:
    """Return the check that a parameter of templateType Standard stands beside no target.

    Args:
        name: Its path in the schedule.
        refused: The values that need Standard.
        shown: The value in the sentence, where it is always the same.
    """
    path = f"{_SCHEDULE}{name}"
    return Check(
        field=path,
        refused=_HAS_TARGET & ~_WROTE_TEMPLATE & refused,
        problem=f"{path} {shown or f'{{{path}}}'} needs templateType Standard, "
        f"which cannot meet the targets of slo; leave {name} or slo out",
    )


_SLO_CHECKS: Final = (
    Check(
        field=f"{_SCHEDULE}templateType",
        refused=_HAS_TARGET & _WROTE_TEMPLATE & ~is_mix(_SCHEDULE),
        problem="engine.schedule.templateType Standard cannot meet the targets of slo: its steps "
        "have no budget, and its prompts no order; set templateType: Mix, or leave templateType "
        "or slo out",
    ),
    _needs_standard("strategy", Written(f"{_SCHEDULE}strategy")),
    _needs_standard(
        "splitFuse.enabled",
        Written(f"{_SCHEDULE}splitFuse.enabled") & ~Value(f"{_SCHEDULE}splitFuse.enabled"),
        "false",
    ),
    _needs_standard("stageSelectPolicy", ~Value(f"{_SCHEDULE}stageSelectPolicy").equals(0)),
    _needs_standard("dynamicBatchSizeEnable", Value(f"{_SCHEDULE}dynamicBatchSizeEnable"), "true"),
)
_SCALING_CHECKS: Final = (
    Check(
        field="scaling.mode",
        refused=(Value("scaling.mode").equals("Auto") | Value("scaling.mode").equals("Recommend"))
        & ~_HAS_TARGET,
        problem="scaling.mode {scaling.mode} needs a target of slo to hold; add slo.ttft or "
        "slo.tpot, or set mode: Manual",
    ),
)
_LENGTH_CHECKS: Final = (
    Check(
        field=f"{_SCHEDULE}maxIterTimes",
        refused=Written("model.maxSeqLen")
        & Written(f"{_SCHEDULE}maxIterTimes")
        & (Value(f"{_SCHEDULE}maxIterTimes") > Value("model.maxSeqLen")),
        problem="engine.schedule.maxIterTimes {engine.schedule.maxIterTimes} is larger than "
        "model.maxSeqLen {model.maxSeqLen}; lower it or raise maxSeqLen",
    ),
    Check(
        field=f"{_SCHEDULE}maxPrefillTokens",
        refused=~_HAS_TARGET
        & ~is_mix(_SCHEDULE)
        & ~Value(f"{_SCHEDULE}strategy").equals("chunked")
        & Written("model.maxInputTokenLen")
        & Written(f"{_SCHEDULE}maxPrefillTokens")
        & (Value(f"{_SCHEDULE}maxPrefillTokens") < Value("model.maxInputTokenLen")),
        problem="engine.schedule.maxPrefillTokens {engine.schedule.maxPrefillTokens} is smaller "
        "than model.maxInputTokenLen {model.maxInputTokenLen}, and only templateType Mix and "
        "strategy chunked cut prompts; raise maxPrefillTokens, lower maxInputTokenLen or set "
        "templateType: Mix",
    ),
)


class InferenceServiceSpec(Model):
    """Desired state of a service."""

    model: ModelSpec
    """The model: where its files are and how long its requests may be."""

    engine: EngineSpec = EngineSpec()
    """Settings of one replica's engine."""

    slo: Slo = Slo()
    """Latency targets of the service; with a TPOT, the token budget of every step is
    chosen by it. Needs templateType Mix, which is its default then."""

    server: ServerSpec = ServerSpec()
    """Limits of one replica's HTTP server."""

    scaling: ScalingSpec = ScalingSpec()
    """Number of replicas, and its owner."""

    resources: ResourcesSpec = ResourcesSpec()
    """Resources of one replica."""

    runtime: RuntimeSpec = RuntimeSpec()
    """The pods that replicas run in; without Kubernetes it has no meaning."""

    observability: ObservabilitySpec = ObservabilitySpec()
    """Reports of the service beside its metrics: traces of requests."""

    progress_deadline_seconds: Annotated[int, Field(ge=30, le=86400)] = PROGRESS_DEADLINE_S
    """Seconds in which a new service, or a change, has to be ready; then the condition Progressing
    has the reason ProgressDeadlineExceeded."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        *_SLO_CHECKS,
        *_SCALING_CHECKS,
        *_LENGTH_CHECKS,
        *RANK_CHECKS,
        *quantization_checks("engine.", "model.quantization"),
        *NPU_CHECKS,
        *MEMORY_CHECKS,
    )

    @property
    def device(self) -> Device:
        """engine.device, which auto leaves to resources."""
        if self.engine.device == "auto":
            return "npu" if self.resources.npu else "cpu"
        return self.engine.device

    @property
    def schedule(self) -> ScheduleConfig:
        """engine.schedule with every default that can be known, those that slo chooses included."""
        written, longest = self.engine.schedule, self.model.max_seq_len
        return with_slo_defaults(written, self.slo, max_seq_len=longest)


class InferenceService(Model):
    """A model behind an OpenAI-compatible endpoint."""

    api_version: Literal["serving.tandem.dev/v1alpha1"]
    """Version of this form."""

    kind: Literal["InferenceService"]
    """Kind of the object."""

    metadata: Metadata
    """Identity of the service."""

    spec: InferenceServiceSpec
    """Desired state of the service."""

    @property
    def sources(self) -> tuple[tuple[str, Source], ...]:
        """The checkpoints of a replica, each with the path of its field: the model first."""
        draft = self.spec.engine.speculation.draft
        model = ("spec.model.source", self.spec.model)
        return (model,) if draft is None else (model, (f"spec.engine.{DRAFT_SOURCE}", draft))

    @property
    def name(self) -> str:
        """Name of the service."""
        return self.metadata.name

    @property
    def model_name(self) -> str:
        """Name under which requests ask for the model."""
        return self.spec.model.name or self.metadata.name

    @property
    def replicas(self) -> int:
        """Number of replicas in force: see `scaled_to`; of a service without status, the first."""
        return self.spec.scaling.initial_replicas

    def scaled_to(self, replicas: int) -> Self:
        """Return the same service with the number of replicas that is in force."""
        scaling = self.spec.scaling.model_copy(update={"replicas": replicas})
        spec = self.spec.model_copy(update={"scaling": scaling})
        return self.model_copy(update={"spec": spec})

    def manifest(self) -> dict[str, Any]:
        """The service as it was written, under its outside names."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def resolved(self) -> dict[str, Any]:
        """The service as a document in which every default that can be known is filled in.

        Values that the replica chooses by its memory are left out.
        """
        document = self.document()
        document["spec"]["model"]["name"] = self.model_name
        engine = document["spec"]["engine"]
        engine["device"] = self.spec.device
        engine["parallelism"] = self.spec.engine.parallelism.resolved().document()
        speculation = self.spec.engine.speculation.resolved(self.spec.engine.schedule)
        engine["speculation"] = speculation.document()
        engine["schedule"] = schedule_document(resolve_schedule(self.spec.schedule))
        document["spec"]["slo"] = self.spec.slo.resolved().document()
        return document
