"""InferenceService → the Serve document that Ray's REST interface takes; pure.

What the document says decides what a change costs: Ray replaces every replica when `args` or
`ray_actor_options` differ, passes a different `user_config` to the running ones, and applies the
rest in place.
"""

import operator
from copy import deepcopy
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import Field

from tandem_engine.api.config import (
    DType,
    EngineConfig,
    EosTokenIds,
    GenerationConfig,
    KVCacheDType,
    MetricAlias,
    ParallelismConfig,
    Quantization,
    ScheduleConfig,
)
from tandem_engine.api.device_facts import Device
from tandem_engine.api.micro_batches import StreamOptions
from tandem_engine.api.model import Model
from tandem_engine.api.rewrites import resolve_schedule, schedule_document
from tandem_engine.api.slo import Slo
from tandem_engine.api.speculation import SpeculationConfig
from tandem_serve.api.at_zero import AUTOSCALING_CONFIG
from tandem_serve.api.draining import GRACEFUL_SHUTDOWN_TIMEOUT_S
from tandem_serve.api.observability import TracingSettings
from tandem_serve.api.spec import InferenceService, ResourcesSpec, ServerSpec

API_KEYS_FOLDER: Final = "/etc/tandem/api-keys"
"""Mount point of the API keys' Secret in a replica's pod, a file for each key."""

IMPORT_PATH: Final = "tandem_serve.app:build"
DEPLOYMENT: Final = "replica"
RAY_NPU: Final = "NPU"
"""Ray's own name of the resource; it counts and assigns the cards."""

# The engine queues and refuses by its own rule, at 3 maxLinkNum + 1. Ray's limit is only a
# fence above it, with room for health checks and metrics.
_SPARE_REQUESTS: Final = 64
_HEALTH_CHECK_PERIOD_S: Final = 1.0
_HEALTH_CHECK_TIMEOUT_S: Final = 10.0


def _is_one_rank(parallelism: ParallelismConfig) -> bool:
    return parallelism.ranks == 1


def _is_one_stream(options: StreamOptions) -> bool:
    return options == StreamOptions()


def _is_auto(value: str) -> bool:
    return value == "auto"


def _is_true(value: bool) -> bool:
    return value


def _is_absent(value: object) -> bool:
    return value is None


def _is_off(speculation: SpeculationConfig) -> bool:
    return speculation == SpeculationConfig()


class EngineArgs(Model):
    """The engine's settings that need a new replica when they change."""

    model_path: str
    """Folder of the checkpoint."""

    device: Device
    """Device backend."""

    dtype: DType
    """Type of weights, activations and KV cache."""

    kv_cache_dtype: KVCacheDType = "auto"
    """Type of the KV cache: auto or int8."""

    quantization: Quantization = "auto"
    """Linear layers in 8 bits: auto, none or w8a8."""

    max_seq_len: int | None
    """Tokens of prompt and output together; None takes the model's own limit."""

    max_input_token_len: int | None
    """Tokens of a prompt; None means max_seq_len − 1."""

    eos_token_ids: Annotated[EosTokenIds | None, Field(exclude_if=_is_absent)] = None
    """Tokens that end an answer; absent: those that the checkpoint's files name."""

    generation_config: Annotated[GenerationConfig, Field(exclude_if=_is_auto)] = "auto"
    """Sampling parameters where a request is silent; absent: generation_config.json's."""

    split_special_tokens: Annotated[bool, Field(exclude_if=_is_true)] = True
    """Encode special tokens that messages spell as text; absent: true."""

    npu_mem_size: int
    """KV cache memory in GiB; -1: what is left."""

    cpu_mem_size: int
    """Host memory for swapped-out KV blocks in GiB."""

    memory_bytes: int
    """Memory of the replica."""

    num_threads: int
    """Compute threads of the replica."""

    cache_block_size: int
    """Tokens of one KV block."""

    parallelism: Annotated[ParallelismConfig, Field(exclude_if=_is_one_rank)] = ParallelismConfig()
    """Ranks of the replica, every field written; absent: one rank."""

    stream_options: Annotated[StreamOptions, Field(exclude_if=_is_one_stream)] = StreamOptions()
    """Streams of a rank; absent: no micro-batches."""

    unsafe_combinations: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Allow combinations with micro-batches that are not tested; absent: false."""

    speculation: Annotated[SpeculationConfig, Field(exclude_if=_is_off)] = SpeculationConfig()
    """Draft tokens; absent: none."""

    metric_aliases: Annotated[tuple[MetricAlias, ...], Field(strict=False)] = ()
    """Other engines under whose metric names the series stand as well; a JSON list."""

    def engine_config(self, live: "LiveSettings") -> EngineConfig:
        """These settings and the live ones as the engine takes them."""
        fixed = self.model_dump(exclude={"cache_block_size"})
        schedule = live.schedule_config(self.cache_block_size)
        return EngineConfig.model_validate({**fixed, "schedule": schedule, "slo": live.slo})


class AppArgs(Model):
    """`args` of the Serve application: what a replica is built from."""

    model_name: str
    """Name under which requests ask for the model."""

    engine: EngineArgs
    """The engine's settings that need a new replica when they change."""

    server: ServerSpec
    """Limits of the replica's HTTP server."""

    api_keys_folder: str | None = None
    """Folder of files with an API key each; None: requests need no key."""

    @classmethod
    def of(cls, service: InferenceService, options: "ServeOptions") -> Self:
        """The arguments of the desired state of `service`."""
        model, engine, resources = service.spec.model, service.spec.engine, service.spec.resources
        return cls(
            model_name=service.model_name,
            engine=EngineArgs(
                model_path=model.path,
                device=service.spec.device,
                dtype=engine.dtype,
                kv_cache_dtype=engine.kv_cache_dtype,
                quantization=model.quantization,
                max_seq_len=model.max_seq_len,
                max_input_token_len=model.max_input_token_len,
                eos_token_ids=None if model.eos_token_ids is None else tuple(model.eos_token_ids),
                generation_config=model.generation_config,
                split_special_tokens=model.split_special_tokens,
                npu_mem_size=engine.npu_mem_size,
                cpu_mem_size=engine.cpu_mem_size,
                memory_bytes=resources.memory_bytes,
                num_threads=resources.cpu,
                cache_block_size=engine.schedule.cache_block_size,
                parallelism=engine.parallelism.resolved(),
                stream_options=engine.stream_options,
                unsafe_combinations=engine.unsafe_combinations,
                speculation=engine.speculation.engine_config(engine.schedule),
                metric_aliases=tuple(service.spec.observability.metric_aliases),
            ),
            server=service.spec.server,
            api_keys_folder=_api_keys_folder(service, options),
        )


class LiveSettings(Model):
    """`user_config` of the deployment: settings that running replicas apply between two steps."""

    schedule: dict[str, Any]
    """ScheduleConfig by its outside names, without cacheBlockSize and what the replica chooses."""

    slo: Slo = Slo()
    """Latency targets."""

    tracing: TracingSettings | None = None
    """Traces of requests; None: there are none."""

    @classmethod
    def of(cls, service: InferenceService) -> Self:
        """The live settings of the desired state of `service`."""
        schedule = schedule_document(resolve_schedule(service.spec.schedule))
        del schedule["cacheBlockSize"]
        return cls(schedule=schedule, slo=service.spec.slo.resolved(), tracing=_tracing(service))

    def schedule_config(self, cache_block_size: int) -> ScheduleConfig:
        """The schedule, with the block size that the replica was built with."""
        return ScheduleConfig.model_validate(
            {**self.schedule, "cacheBlockSize": cache_block_size}, by_alias=True, by_name=False
        )


class ServeOptions(Model):
    """Settings of the host or cluster, not of the manifest: address, API keys, surge."""

    host: str = "0.0.0.0"  # noqa: S104  # a pod's own network; locally the caller says 127.0.0.1
    """Address that the proxy binds."""

    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port that the proxy binds."""

    api_keys_folder: str | None = None
    """Folder of files with an API key each; None takes the Secret that the manifest names."""

    max_surge_percent: Annotated[int, Field(ge=0, le=100)] = 0
    """Replicas, in percent, that may start before their predecessors stop."""


def serve_document(service: InferenceService, options: ServeOptions) -> dict[str, Any]:
    """The body of `PUT /api/serve/applications/` for `service` alone.

    The source must be absolute, as `load_manifest` makes it.
    """
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": options.host, "port": options.port},
        "applications": [_application(service, options)],
    }


def _application(service: InferenceService, options: ServeOptions) -> dict[str, Any]:
    return {
        "name": service.name,
        # Without replicas no request is routed: else it would wait in a proxy of Serve's, unseen.
        "route_prefix": "/" if service.replicas else None,
        "import_path": IMPORT_PATH,
        "args": AppArgs.of(service, options).document(),
        "deployments": [_deployment(service, options)],
    }


def _tracing(service: InferenceService) -> TracingSettings | None:
    tracing = service.spec.observability.tracing
    if tracing is None:
        return None
    return TracingSettings(
        endpoint=tracing.endpoint,
        sample_ratio=tracing.sample_ratio,
        service_name=service.name,
        model_name=service.model_name,
        service_namespace=service.metadata.namespace,
    )


def _api_keys_folder(service: InferenceService, options: ServeOptions) -> str | None:
    mounted = API_KEYS_FOLDER if service.spec.server.api_keys_secret else None
    return options.api_keys_folder or mounted


def _deployment(service: InferenceService, options: ServeOptions) -> dict[str, Any]:
    return {
        "name": DEPLOYMENT,
        **_number(service),
        "max_ongoing_requests": 4 * service.spec.server.max_link_num + _SPARE_REQUESTS,
        "max_queued_requests": -1,
        "user_config": LiveSettings.of(service).document(),
        "health_check_period_s": _HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": _HEALTH_CHECK_TIMEOUT_S,
        "graceful_shutdown_timeout_s": float(GRACEFUL_SHUTDOWN_TIMEOUT_S),
        "graceful_shutdown_wait_loop_s": 0.5,
        "max_surge_percent": options.max_surge_percent,
        **_placement(service),
    }


def _number(service: InferenceService) -> dict[str, Any]:
    if service.replicas:
        return {"num_replicas": service.replicas}
    return {"autoscaling_config": deepcopy(AUTOSCALING_CONFIG)}


def _placement(service: InferenceService) -> dict[str, Any]:
    """Return what a replica asks of its node: rank by rank, where there are several.

    All ranks are on one node, and the replica's actor is in the first rank's bundle.
    """
    resources, num_ranks = service.spec.resources, service.spec.engine.parallelism.ranks
    shares = [_share(resources, num_ranks, rank) for rank in range(num_ranks)]
    options = {"ray_actor_options": _actor_options(shares[0])}
    if num_ranks == 1:
        return options
    return options | {
        "placement_group_bundles": [_bundle(share) for share in shares],
        "placement_group_strategy": "STRICT_PACK",
    }


class _Share(NamedTuple):
    """The part of a replica's resources that one rank has."""

    cpu: int
    memory_bytes: int
    npu: int


def _share(resources: ResourcesSpec, num_ranks: int, rank: int) -> _Share:
    """Return an even share; the first ranks have a CPU more where they are not even."""
    cpu, more = divmod(resources.cpu, num_ranks)
    return _Share(
        cpu=cpu + (rank < more),
        memory_bytes=resources.memory_bytes // num_ranks,
        npu=resources.npu // num_ranks,
    )


def _actor_options(share: _Share) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": share.cpu, "memory": share.memory_bytes}
    # Without a card of its own an actor sees all of the node's: it asks only when it needs some.
    return options | ({"resources": {RAY_NPU: share.npu}} if share.npu else {})


def _bundle(share: _Share) -> dict[str, int]:
    bundle = {"CPU": share.cpu, "memory": share.memory_bytes}
    return bundle | ({RAY_NPU: share.npu} if share.npu else {})
