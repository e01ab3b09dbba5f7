"""The Serve document that is rendered from a service."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tandem_engine.api.config import EngineConfig, ParallelismConfig
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_serve.api.document import (
    API_KEYS_FOLDER,
    AppArgs,
    LiveSettings,
    ServeOptions,
    serve_document,
)
from tandem_serve.api.manifest import parse_manifest
from tandem_serve.api.spec import InferenceService

MANIFEST = """
apiVersion: serving.tandem.dev/v1alpha1
kind: InferenceService
metadata: {name: tiny}
spec:
  model:
    name: tandem-tiny
    source: file:///models/tiny
    quantization: w8a8
    maxSeqLen: 1024
    maxInputTokenLen: 1000
  engine:
    dtype: bfloat16
    kvCacheDtype: int8
    npuMemSize: 1
    cpuMemSize: 1
    schedule:
      maxPreemptCount: 2
      templateType: Mix
      cacheBlockSize: 16
      maxBatchSize: 8
      splitFuse: {splitChunkTokens: 256}
  server: {maxLinkNum: 100, maxRequestLength: 2}
  scaling: {minReplicas: 3}
  resources: {cpu: 2, memory: 3Gi}
"""


def service(**spec: Any) -> InferenceService:
    document = yaml.safe_load(MANIFEST)
    document["spec"] |= spec
    return parse_manifest(yaml.safe_dump(document), folder=Path("/"))


def deployment(document: dict[str, Any]) -> dict[str, Any]:
    (application,) = document["applications"]
    (found,) = application["deployments"]
    return dict(found)


def test_one_application_is_named_after_the_service() -> None:
    document = serve_document(service(), ServeOptions(host="127.0.0.1", port=9000))

    (application,) = document["applications"]
    assert application["name"] == "tiny"
    assert application["route_prefix"] == "/"
    assert application["import_path"] == "tandem_serve.app:build"
    assert document["http_options"] == {"host": "127.0.0.1", "port": 9000}


def test_the_deployment_carries_replicas_and_resources() -> None:
    found = deployment(serve_document(service(), ServeOptions(max_surge_percent=100)))

    assert found["num_replicas"] == 3
    assert found["max_surge_percent"] == 100
    assert found["ray_actor_options"] == {"num_cpus": 2, "memory": 3 * 2**30}


def test_a_service_without_replicas_is_not_routed_and_serve_never_starts_one() -> None:
    document = serve_document(service(scaling={"minReplicas": 0}), ServeOptions())

    (application,) = document["applications"]
    found = deployment(document)
    assert application["route_prefix"] is None
    assert "num_replicas" not in found
    config = found["autoscaling_config"]
    assert (config["min_replicas"], config["initial_replicas"]) == (0, 0)
    module, _, name = config["policy"]["policy_function"].partition(":")
    assert getattr(import_module(module), name)(object()) == (0, {})


def test_ray_counts_the_cards_of_a_replica_that_has_some() -> None:
    # The spec refuses cards until a device computes on them; the document is ready for it.
    desired = service(resources={"cpu": 2, "memory": "3Gi"})
    resources = desired.spec.resources.model_copy(update={"npu": 4, "npu_profile": "big"})
    spec = desired.spec.model_copy(update={"resources": resources})

    found = deployment(serve_document(desired.model_copy(update={"spec": spec}), ServeOptions()))

    assert found["ray_actor_options"] == {
        "num_cpus": 2,
        "memory": 3 * 2**30,
        "resources": {"NPU": 4},
    }


def test_a_replica_of_several_ranks_is_a_placement_group_on_one_node() -> None:
    desired = service(
        engine={"parallelism": {"worldSize": 2}}, resources={"cpu": 5, "memory": "3Gi"}
    )

    found = deployment(serve_document(desired, ServeOptions()))

    first = {"CPU": 3, "memory": 1.5 * 2**30}
    assert found["placement_group_bundles"] == [first, first | {"CPU": 2}]
    assert found["placement_group_strategy"] == "STRICT_PACK"
    assert found["ray_actor_options"] == {"num_cpus": 3, "memory": 1.5 * 2**30}


def test_every_rank_has_its_share_of_the_cards() -> None:
    desired = service(
        engine={"parallelism": {"tp": 2, "dp": 2}}, resources={"cpu": 4, "memory": "4Gi"}
    )
    resources = desired.spec.resources.model_copy(update={"npu": 8})
    spec = desired.spec.model_copy(update={"resources": resources})

    found = deployment(serve_document(desired.model_copy(update={"spec": spec}), ServeOptions()))

    assert found["placement_group_bundles"] == 4 * [{"CPU": 1, "memory": 2**30, "NPU": 2}]
    assert found["ray_actor_options"]["resources"] == {"NPU": 2}


@pytest.mark.parametrize("ranks", [{}, {"worldSize": 1, "tp": 1}, {"dp": -1}])
def test_a_replica_of_one_rank_has_no_placement_group(ranks: dict[str, int]) -> None:
    schedule = {"maxPreemptCount": 0}
    plain = serve_document(service(engine={"schedule": schedule}), ServeOptions())
    ranked = service(engine={"schedule": schedule, "parallelism": ranks})

    found = serve_document(ranked, ServeOptions())

    assert found == plain
    assert "parallelism" not in found["applications"][0]["args"]["engine"]
    assert not {name for name in deployment(found) if name.startswith("placement")}


def test_a_replica_is_told_its_ranks() -> None:
    desired = service(engine={"parallelism": {"worldSize": 2, "dp": -1}})
    args = args_of(desired, ServeOptions())

    config = args.engine.engine_config(LiveSettings.of(desired))

    assert config.parallelism == ParallelismConfig(world_size=2, tp=2, pp=1, dp=1, sp=False)


def test_a_replica_is_told_of_micro_batches_and_else_nothing() -> None:
    engine = {"parallelism": {"tp": 2}, "streamOptions": {"microBatch": True}}
    on = service(engine=engine, resources={"cpu": 2})
    off = service(engine={"streamOptions": {}, "ccl": {}, "graph": "cpp"})

    config = args_of(on, ServeOptions()).engine.engine_config(LiveSettings.of(on))

    assert config.stream_options.micro_batch
    assert not config.unsafe_combinations
    # Else a new version would have Ray replace the replicas of every service.
    assert serve_document(off, ServeOptions()) == serve_document(service(engine={}), ServeOptions())


def args_of(service: InferenceService, options: ServeOptions) -> AppArgs:
    return AppArgs.model_validate(serve_document(service, options)["applications"][0]["args"])


def test_a_replica_reads_its_api_keys_where_the_secret_is_mounted() -> None:
    desired = service(server={"apiKeysSecret": "keys"})

    assert args_of(desired, ServeOptions()).api_keys_folder == API_KEYS_FOLDER
    assert args_of(service(), ServeOptions()).api_keys_folder is None


def test_a_folder_of_api_keys_replaces_the_secret() -> None:
    options = ServeOptions(api_keys_folder="/keys")

    assert args_of(service(), options).api_keys_folder == "/keys"
    assert args_of(service(server={"apiKeysSecret": "keys"}), options).api_keys_folder == "/keys"


def test_a_replica_reads_its_checkpoint_where_the_claim_is_mounted() -> None:
    args = args_of(service(model={"source": "pvc://models/tiny"}), ServeOptions())

    assert args.engine.model_path == "/mnt/claims/models/tiny"


def test_ray_refuses_no_request_that_the_engine_would_queue() -> None:
    found = deployment(serve_document(service(), ServeOptions()))

    assert found["max_ongoing_requests"] > 3 * 100 + 1


def test_live_settings_are_the_schedule_without_its_block_size() -> None:
    found = deployment(serve_document(service(), ServeOptions()))

    assert found["user_config"]["schedule"] == {
        "templateType": "Mix",
        "strategy": "splitfuse",
        "maxPrefillBatchSize": 8,
        "maxPrefillTokens": 8192,
        "prefillTimeMsPerReq": 150,
        "prefillPolicyType": 0,
        "decodeTimeMsPerReq": 50,
        "decodePolicyType": 0,
        "maxBatchSize": 8,
        "maxIterTimes": 512,
        "maxPreemptCount": 2,
        "supportSelectBatch": False,
        "maxQueueDelayMicroseconds": 5000,
        "maxFirstTokenWaitTime": 2500,
        "maxN": 8,
        "stageSelectPolicy": 0,
        "dynamicBatchSizeEnable": False,
        "prefillExpectedTime": 1500,
        "decodeExpectedTime": 50,
        "bufferResponseEnabled": False,
        "asyncSchedulingEnable": False,
        "enablePrefixCache": True,
        "noEvict": False,
        "splitFuse": {
            "enabled": True,
            "splitChunkTokens": 256,
            "splitType": False,
            "splitStartType": False,
            "splitStartBatchSize": 8,
            "policyType": 0,
            "prefillChunkSize": None,
            "maxNumPartialPrefills": 64,
            "longPrefillTokenThreshold": 1024,
            "maxLongPartialPrefills": 8,
        },
    }


def test_live_settings_hold_the_targets_in_one_unit() -> None:
    found = deployment(serve_document(service(slo={"tpot": {"target": "0.05s"}}), ServeOptions()))

    assert found["user_config"]["slo"] == {
        "ttft": None,
        "tpot": {"percentile": 90, "target": "50ms"},
    }


def schedule_of(**spec: Any) -> Any:
    return deployment(serve_document(service(**spec), ServeOptions()))["user_config"]["schedule"]


def test_what_the_replica_chooses_by_its_memory_is_left_to_it() -> None:
    assert "maxBatchSize" not in schedule_of(engine={})
    assert schedule_of(engine={"schedule": {"maxBatchSize": 200}})["maxBatchSize"] == 200


def test_an_slo_chooses_how_steps_are_shared_where_the_manifest_does_not() -> None:
    for slo in ({"tpot": {"target": "50ms"}}, {"ttft": {"target": "1s"}}):
        chosen = schedule_of(engine={}, slo=slo)

        assert (chosen["templateType"], chosen["strategy"]) == ("Mix", "splitfuse")
        assert chosen["splitFuse"]["splitStartBatchSize"] == 0
        # The service's maxSeqLen.
        assert chosen["maxIterTimes"] == 1024


def test_an_output_without_a_known_bound_is_left_to_the_replica_where_there_is_a_target() -> None:
    model = {"source": "file:///models/tiny"}

    with_target = schedule_of(model=model, engine={}, slo={"tpot": {"target": "50ms"}})
    assert "maxIterTimes" not in with_target
    assert schedule_of(model=model, engine={})["maxIterTimes"] == 512


def test_an_slo_changes_nothing_that_the_manifest_sets() -> None:
    written = {
        "templateType": "Mix",
        "maxIterTimes": 512,
        "splitFuse": {"splitStartBatchSize": 16},
    }
    chosen = schedule_of(engine={"schedule": written}, slo={"tpot": {"target": "50ms"}})

    assert chosen["maxIterTimes"] == 512
    assert chosen["splitFuse"]["splitStartBatchSize"] == 16


def test_a_target_changes_nothing_that_needs_a_new_replica() -> None:
    (before,) = serve_document(service(), ServeOptions())["applications"]
    (after,) = serve_document(service(slo={"ttft": {"target": "1s"}}), ServeOptions())[
        "applications"
    ]

    assert before["args"] == after["args"]
    assert before["deployments"][0]["user_config"] != after["deployments"][0]["user_config"]


def test_a_replica_reads_back_the_desired_settings() -> None:
    desired = service(slo={"tpot": {"percentile": 99, "target": "0.05s"}})
    document = json.loads(json.dumps(serve_document(desired, ServeOptions())))

    args = AppArgs.model_validate(document["applications"][0]["args"])
    live = LiveSettings.model_validate(deployment(document)["user_config"])
    config = args.engine.engine_config(live)

    assert args.model_name == "tandem-tiny"
    assert args.server == service().spec.server
    assert config == EngineConfig(
        model_path="/models/tiny",
        dtype="bfloat16",
        kv_cache_dtype="int8",
        quantization="w8a8",
        max_seq_len=1024,
        max_input_token_len=1000,
        npu_mem_size=1,
        cpu_mem_size=1,
        memory_bytes=3 * 2**30,
        num_threads=2,
        schedule=config.schedule,
        slo=Slo(tpot=LatencyTarget(percentile=99, target="50ms")),
    )
    assert config.schedule.cache_block_size == 16
    assert config.schedule.split_fuse.split_chunk_tokens == 256


def test_a_replica_reads_back_the_names_of_other_engines() -> None:
    document = json.loads(json.dumps(serve_document(service(), ServeOptions())))
    args = document["applications"][0]["args"]
    args["engine"]["metricAliases"] = ["vllm", "mindie"]
    live = LiveSettings.model_validate(deployment(document)["user_config"])

    config = AppArgs.model_validate(args).engine.engine_config(live)

    assert config.metric_aliases == ("vllm", "mindie")
    args["engine"]["metricAliases"] = ["triton"]
    with pytest.raises(ValidationError, match="metricAliases"):
        AppArgs.model_validate(args)


def test_writing_a_default_down_changes_nothing() -> None:
    short = service(server={}, resources={}, engine={"schedule": {"maxBatchSize": 8}})
    long = service(
        server={"maxLinkNum": 1000, "maxRequestLength": 4, "e2eTimeout": 600},
        resources={"cpu": 1, "memory": "4Gi"},
        scaling={"minReplicas": 3},
        engine={
            "device": "cpu",
            "dtype": "auto",
            "kvCacheDtype": "auto",
            "npuMemSize": -1,
            "cpuMemSize": 0,
            "schedule": {
                "maxBatchSize": 8,
                "templateType": "Standard",
                "maxPrefillBatchSize": 8,
                "splitFuse": {"enabled": False, "maxLongPartialPrefills": 8},
                "strategy": "continuous",
                "maxPreemptCount": 0,
                "maxN": 8,
                "enablePrefixCache": True,
            },
        },
        slo={},
    )

    assert serve_document(short, ServeOptions()) == serve_document(long, ServeOptions())
