"""Manifests that Kubernetes must accept or refuse; the API server and the operator must agree."""

from typing import Any, Final

from tests.unit.operator.crd.bad_micro_batches import GOOD_MICRO_BATCHES, bad_micro_batches
from tests.unit.operator.crd.bad_pods import misfitting_pods
from tests.unit.operator.crd.bad_ranks import RANKS, bad_ranks
from tests.unit.operator.crd.bad_scaling import WITH_TARGET, bad_scaling
from tests.unit.operator.crd.bad_schedules import misfits, out_of_range, unmet_targets
from tests.unit.operator.crd.bad_speculation import GOOD_SPECULATION, bad_speculation
from tests.unit.operator.crd.bad_stores import bad_stores
from tests.unit.operator.crd.bad_traces import bad_traces
from tests.unit.operator.crd.forms import (
    RUNTIME,
    SCHEDULE,
    SPLIT,
    STORE,
    TRACING,
    Bad,
    wrong_value,
)

GOOD: Final[dict[str, dict[str, Any]]] = {
    "the smallest": {},
    "a claim": {"spec.model.source": "pvc://models/tiny"},
    "a whole claim": {"spec.model.source": "pvc://models.v2"},
    "a folder with points in its name": {"spec.model.source": "file:///models/..tiny/a..b"},
    "the longest name": {"metadata.name": "a" + "-" * 45 + "z"},
    "labels and annotations": {"metadata.labels": {"a": "b"}, "metadata.annotations": {"c": "d"}},
    "SplitFuse": {f"{SCHEDULE}.templateType": "Mix", f"{SPLIT}.enabled": True},
    "SplitFuse, not written": {f"{SCHEDULE}.templateType": "Mix"},
    "SplitFuse denied where it is off": {f"{SPLIT}.enabled": False},
    "a batch below the defaults": {f"{SCHEDULE}.maxBatchSize": 1},
    "as many prefills as rows": {
        f"{SCHEDULE}.maxBatchSize": 8,
        f"{SCHEDULE}.maxPrefillBatchSize": 8,
        f"{SPLIT}.splitStartBatchSize": 8,
    },
    "0 for maxBatchSize": {f"{SCHEDULE}.maxPrefillBatchSize": 0},
    "a context below the default output": {"spec.model.maxSeqLen": 128},
    "a prompt above the default step": {"spec.model.maxInputTokenLen": 9000},
    "a prompt above a step that cuts it": {
        "spec.model.maxInputTokenLen": 9000,
        f"{SCHEDULE}.maxPrefillTokens": 100,
        f"{SCHEDULE}.templateType": "Mix",
    },
    "ends of the manifest": {"spec.model.eosTokenIds": [0, 151645]},
    "origins of pages": {
        "spec.server.allowedOrigins": ["*", "https://a.b", "http://localhost:3000"],
        "spec.server.strict": True,
    },
    "the longest prompt": {"spec.model.maxSeqLen": 129, "spec.model.maxInputTokenLen": 128},
    "as much output as context": {"spec.model.maxSeqLen": 64, f"{SCHEDULE}.maxIterTimes": 64},
    "the smallest tiles": {f"{SCHEDULE}.cacheBlockSize": 16, f"{SPLIT}.splitChunkTokens": 16},
    "every choice of the continuous strategy": {
        f"{SCHEDULE}.strategy": "continuous",
        f"{SCHEDULE}.prefillPolicyType": 3,
        f"{SCHEDULE}.decodePolicyType": 2,
        f"{SCHEDULE}.stageSelectPolicy": 2,
        f"{SCHEDULE}.dynamicBatchSizeEnable": True,
        f"{SCHEDULE}.bufferResponseEnabled": True,
        f"{SCHEDULE}.asyncSchedulingEnable": True,
    },
    "throughput first by its older name": {f"{SCHEDULE}.supportSelectBatch": True},
    "throughput first by both names": {
        f"{SCHEDULE}.supportSelectBatch": True,
        f"{SCHEDULE}.stageSelectPolicy": 1,
    },
    "an older name that SplitFuse skips": {
        f"{SCHEDULE}.templateType": "Mix",
        f"{SCHEDULE}.supportSelectBatch": True,
    },
    "a strategy by name": {f"{SCHEDULE}.strategy": "static"},
    "SplitFuse by name": {f"{SCHEDULE}.templateType": "Mix", f"{SCHEDULE}.strategy": "splitfuse"},
    "SplitFuse by priority": {
        f"{SCHEDULE}.templateType": "Mix",
        f"{SCHEDULE}.prefillPolicyType": 2,
    },
    "short jobs first": {f"{SCHEDULE}.templateType": "Mix", f"{SPLIT}.policyType": 4},
    "a prompt above a step of strategy chunked": {
        "spec.model.maxInputTokenLen": 9000,
        f"{SCHEDULE}.maxPrefillTokens": 100,
        f"{SCHEDULE}.strategy": "chunked",
    },
    "a chunk as large as the step": {
        f"{SCHEDULE}.maxPrefillTokens": 100,
        f"{SPLIT}.prefillChunkSize": 100,
    },
    "0 for a shared budget": {f"{SPLIT}.prefillChunkSize": 0},
    "few partial prefills": {f"{SPLIT}.maxNumPartialPrefills": 2},
    "as many long prefills as prefills": {
        f"{SPLIT}.maxNumPartialPrefills": 2,
        f"{SPLIT}.maxLongPartialPrefills": 2,
    },
    "as many choices as rows": {f"{SCHEDULE}.maxBatchSize": 8, f"{SCHEDULE}.maxN": 8},
    "swaps with memory on the host": {
        "spec.engine.cpuMemSize": 1,
        f"{SCHEDULE}.maxPreemptCount": 200,
    },
    "two caches just below the memory": {
        "spec.engine.cpuMemSize": 2,
        "spec.engine.npuMemSize": 2,
        "spec.resources.memory": "4.0001Gi",
    },
    "no prefix cache and no preemption": {
        f"{SCHEDULE}.enablePrefixCache": False,
        f"{SCHEDULE}.noEvict": True,
    },
    "an SLO": {
        "spec.slo": {"ttft": {"target": "1.5s"}, "tpot": {"percentile": 99, "target": "50ms"}}
    },
    "an SLO of nothing": {"spec.slo": {}},
    "an SLO of nothing beside Standard": {"spec.slo": {}, f"{SCHEDULE}.templateType": "Standard"},
    "an SLO beside Mix": {
        "spec.slo.ttft.target": "1s",
        f"{SCHEDULE}.templateType": "Mix",
        f"{SPLIT}.splitStartBatchSize": 4,
        f"{SCHEDULE}.maxIterTimes": 64,
    },
    "an SLO and a prompt above a step": {
        "spec.slo.tpot.target": "50ms",
        "spec.model.maxInputTokenLen": 9000,
        f"{SCHEDULE}.maxPrefillTokens": 100,
    },
    "an SLO and a batch below the defaults": {
        "spec.slo.tpot.target": "50ms",
        f"{SCHEDULE}.maxBatchSize": 4,
    },
    "the longest duration": {"spec.slo.tpot.target": "9999999.999ms"},
    "the largest tiles": {f"{SCHEDULE}.cacheBlockSize": 128, f"{SPLIT}.splitChunkTokens": 8192},
    "a cache just below the memory": {
        "spec.engine.npuMemSize": 4,
        "spec.resources.memory": "4.0001Gi",
    },
    "memory in plain bytes": {"spec.resources.memory": "1073741824"},
    "keys": {"spec.server.apiKeysSecret": "tiny-keys"},
    "a Secret with points in its name": {
        "spec.server.apiKeysSecret": "keys.example.com",
        f"{RUNTIME}.imagePullSecrets": ["registry.example.com", "a" * 253],
    },
    "the most replicas": {"spec.scaling.minReplicas": 1000},
    "no replica": {"spec.scaling.minReplicas": 0, "spec.scaling.replicas": 0},
    "a number outside the bounds": {
        "spec.scaling.replicas": 9,
        "spec.scaling.maxReplicas": 3,
    },
    "an autoscaler": {
        **WITH_TARGET,
        "spec.scaling": {
            "mode": "Auto",
            "maxReplicas": 8,
            "behavior": {"scaleUp": {"maxStep": 1}, "scaleDown": {"maxStep": 2}},
            "schedule": [
                {"start": "0 8 * * MON-FRI", "duration": "10h", "minReplicas": 4},
                {
                    "start": "*/5,7-50/9 22-2 1,31 NOV-JAN 5-1",
                    "duration": "9999m",
                    "timeZone": "America/Argentina/Buenos_Aires",
                    "minReplicas": 1,
                },
            ],
        },
    },
    "ranks of every kind": {
        RANKS: {"worldSize": 8, "tp": 2, "pp": 2, "dp": 2, "sp": True},
        "spec.resources.cpu": 8,
    },
    "a world alone": {f"{RANKS}.worldSize": 64, "spec.resources.cpu": 64},
    "a degree alone": {f"{RANKS}.pp": 2, "spec.resources.cpu": 2},
    "data parallel switched off": {f"{RANKS}.dp": -1},
    **GOOD_MICRO_BATCHES,
    **GOOD_SPECULATION,
    "metrics under other names": {"spec.observability.metricAliases": ["vllm", "mindie"]},
    "the longest environment": {
        f"{RUNTIME}.env": [
            {"name": "A", "value": "\u00e4" * 32768},
            {"name": "B" * 32, "value": ""},
            {"name": "C", "value": "c" * 32734},
        ],
    },
    "a patient deadline": {"spec.progressDeadlineSeconds": 86400},
    "pods in full": {
        f"{RUNTIME}.image": "registry.example/tandem:1",
        f"{RUNTIME}.imagePullPolicy": "Always",
        f"{RUNTIME}.imagePullSecrets": ["one", "two"],
        f"{RUNTIME}.env": [{"name": "A"}, {"name": "TANDEM_PIN", "value": "on"}],
        f"{RUNTIME}.volumes": [
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "two", "hostPath": {"path": "/two"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "a.b", "readOnly": True}},
            {"name": "labels", "downwardAPI": {"items": []}},
        ],
        f"{RUNTIME}.volumeMounts": [
            {"name": "scratch", "mountPath": "/scratch", "readOnly": True},
            {"name": "scratch", "mountPath": "/again"},
            {"name": "two", "mountPath": "/a/..b/.c d"},
            {"name": "claim", "mountPath": "/c", "subPath": "a/..b", "mountPropagation": "None"},
            {"name": "labels", "mountPath": "/d", "subPathExpr": "$(A)/x"},
        ],
        f"{RUNTIME}.nodeSelector": {
            "kubernetes.io/arch": "arm64",
            "Pool_1.b": "",
            "a" * 63: "A.b-c_d",
            f"{'d' * 253}/a": "1",
        },
        f"{RUNTIME}.tolerations": [
            {"operator": "Exists"},
            {"key": "npu", "value": "yes", "effect": "NoSchedule"},
            {"key": "example.com/Npu", "value": "", "effect": "PreferNoSchedule"},
            {"key": "npu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
        ],
    },
    "traces": {f"{TRACING}.endpoint": "http://otel-collector.monitoring.svc:4318"},
    "a share of the traces, below a path": {
        TRACING: {"endpoint": "https://[::1]:4318/team-a", "sampleRatio": 0.01},
    },
    "traces where the caller asks for them alone": {
        TRACING: {"endpoint": "http://collector", "sampleRatio": 0},
    },
    "a store without a password": {f"{STORE}.redisAddress": "redis.storage.svc:6379"},
    "a store with one": {
        STORE: {
            "redisAddress": "redis://10.0.0.1:1",
            "redisUsername": {"valueFrom": {"secretKeyRef": {"name": "r", "key": "user"}}},
            "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "r", "key": "pass.word_1"}}},
        }
    },
}
"""Valid case → the fields that differ from the smallest manifest."""


BAD: Final = (
    wrong_value("metadata.name", "a" * 48, "use up to 47"),
    wrong_value("metadata.name", "1tiny", "a letter first"),
    wrong_value("metadata.name", "tiny.v2", "letters, digits and '-'"),
    Bad("no spec", {"spec": None}, "spec", "Required value", "is missing"),
    Bad("no model", {"spec": {}}, "spec.model", "Required value", "is missing"),
    Bad("no source", {"spec.model": {}}, "spec.model.source", "Required value", "is missing"),
    wrong_value("spec.model.name", "tiny model", "'tiny model' is not a model name; use up to 256"),
    wrong_value("spec.model.source", "/models/tiny", "is a bare path; write file:///models/tiny"),
    wrong_value(
        "spec.model.source", "./tiny", "is relative to a manifest, whose folder Kubernetes"
    ),
    wrong_value(
        "spec.model.source", "..", "write file:///absolute/path for a folder of the node, or"
    ),
    wrong_value(
        "spec.model.source",
        "hf://Qwen/Qwen3-8B",
        "is not a source that Kubernetes can mount; write file:///absolute/path",
        "has the scheme 'hf'",
    ),
    wrong_value("spec.model.source", "file://models/tiny", "write file:///absolute/path", "scheme"),
    wrong_value(
        "spec.model.source", "tiny", "or pvc://claim/path", "is neither file:///absolute/path"
    ),
    wrong_value("spec.model.source", "file:///a/../b", "names no folder of the node"),
    wrong_value("spec.model.source", "file:///a/%2E%2e", "names no folder of the node"),
    wrong_value("spec.model.source", "file:///", "names no folder of the node"),
    wrong_value("spec.model.source", "pvc://Models/tiny", "names no folder in a volume claim"),
    wrong_value("spec.model.source", "pvc://a..b/tiny", "names no folder in a volume claim"),
    wrong_value(
        "spec.model.source", f"pvc://{'a' * 254}/tiny", "names no folder in a volume claim"
    ),
    wrong_value("spec.model.source", "pvc://models/../tiny", "then a path without '..'"),
    wrong_value("spec.model.maxSeqLen", 1, "greater than or equal to 2", "allowed: 2 or more"),
    wrong_value(
        "spec.model.maxSeqLen", "1024", "must be of type integer", "write it without quotes"
    ),
    wrong_value(
        "spec.model.eosTokenIds",
        [],
        "should have at least 1 items",
        "expected at least 1 entry",
    ),
    wrong_value(
        "spec.model.maxInputTokenLen", 4194305, "less than or equal to 4194304", "too large"
    ),
    Bad(
        "a prompt as long as the context",
        {"spec.model.maxSeqLen": 512, "spec.model.maxInputTokenLen": 512},
        "spec.model.maxInputTokenLen",
        "maxInputTokenLen 512 leaves no room for a new token in maxSeqLen 512; "
        "lower it to at most 511 or raise maxSeqLen",
    ),
    wrong_value("spec.model.generationConfig", "vllm", '"none"', "allowed: auto, none"),
    Bad(
        "an origin with a path",
        {"spec.server.allowedOrigins": ["https://a.b/"]},
        "spec.server.allowedOrigins[0]",
        "is not the origin of a web page",
        "without a path",
    ),
    wrong_value(
        "spec.model.splitSpecialTokens", "no", "must be of type boolean", "expected true or false"
    ),
    wrong_value("spec.model.quantization", "W8A8", '"w8a8"', "did you mean 'w8a8'?"),
    wrong_value("spec.engine.device", "gpu", '"npu"', "allowed: auto, cpu, npu"),
    wrong_value("spec.engine.kvCacheDtype", "fp8", '"int8"', "allowed: auto, int8"),
    wrong_value("spec.engine.dtype", "Float16", '"float16"', "did you mean 'float16'?"),
    wrong_value(
        "spec.engine.npuMemSize", 0, "0 is neither -1 (all that is left) nor a size in GiB"
    ),
    wrong_value("spec.engine.npuMemSize", -2, "greater than or equal to -1", "is too small"),
    Bad(
        "a cache as large as the memory",
        {"spec.engine.npuMemSize": 4},
        "spec.engine.npuMemSize",
        "engine.npuMemSize 4 (GiB) leaves nothing of resources.memory 4Gi",
    ),
    wrong_value(f"{SCHEDULE}.templateType", "mix", '"Standard", "Mix"', "did you mean 'Mix'?"),
    wrong_value(
        f"{SCHEDULE}.cacheBlockSize", 24, "24 is not a multiple of 16; use 16 or 32", "24 is not"
    ),
    wrong_value(f"{SCHEDULE}.cacheBlockSize", 144, "less than or equal to 128", "is too large"),
    wrong_value(
        f"{SCHEDULE}.maxBatchSize", 0, "greater than or equal to 1", "allowed: 1 to 819200"
    ),
    Bad(
        "more prefills than rows",
        {f"{SCHEDULE}.maxBatchSize": 8, f"{SCHEDULE}.maxPrefillBatchSize": 9},
        f"{SCHEDULE}.maxPrefillBatchSize",
        "maxPrefillBatchSize 9 is larger than maxBatchSize 8; lower it or raise maxBatchSize",
    ),
    Bad(
        "more output than context",
        {"spec.model.maxSeqLen": 256, f"{SCHEDULE}.maxIterTimes": 257},
        f"{SCHEDULE}.maxIterTimes",
        "engine.schedule.maxIterTimes 257 is larger than model.maxSeqLen 256; lower it or raise",
    ),
    Bad(
        "a prompt that fits no step",
        {"spec.model.maxInputTokenLen": 600, f"{SCHEDULE}.maxPrefillTokens": 512},
        f"{SCHEDULE}.maxPrefillTokens",
        "engine.schedule.maxPrefillTokens 512 is smaller than model.maxInputTokenLen 600, and "
        "only templateType Mix and strategy chunked cut prompts",
    ),
    Bad(
        "SplitFuse without Mix",
        {f"{SPLIT}.enabled": True},
        f"{SPLIT}.enabled",
        "splitFuse.enabled needs templateType Mix, not Standard; set templateType: Mix or leave",
    ),
    Bad(
        "Mix without SplitFuse",
        {f"{SCHEDULE}.templateType": "Mix", f"{SPLIT}.enabled": False},
        f"{SPLIT}.enabled",
        "templateType Mix needs splitFuse.enabled true, not false; set templateType: Standard",
    ),
    *bad_ranks(),
    *bad_micro_batches(),
    *bad_speculation(),
    *out_of_range(),
    *misfits(),
    wrong_value(f"{SPLIT}.enabled", "yes", "must be of type boolean", "expected true or false"),
    wrong_value(f"{SPLIT}.splitChunkTokens", 8200, "less than or equal to 8192", "too large"),
    wrong_value(f"{SPLIT}.splitChunkTokens", 100, "use 96 or 112", "100 is not a multiple of 16"),
    Bad(
        "splitting from more rows than there are",
        {f"{SCHEDULE}.maxBatchSize": 8, f"{SPLIT}.splitStartBatchSize": 9},
        f"{SPLIT}.splitStartBatchSize",
        "splitFuse.splitStartBatchSize 9 is larger than maxBatchSize 8",
    ),
    wrong_value(
        "spec.engine.cpuMemSize", -1, "greater than or equal to 0", "allowed: 0 to 1048576"
    ),
    Bad(
        "two caches as large as the memory",
        {"spec.engine.npuMemSize": 2, "spec.engine.cpuMemSize": 2},
        "spec.engine.cpuMemSize",
        "engine.cpuMemSize 2 (GiB), with engine.npuMemSize 2, leaves nothing of resources.memory "
        "4Gi",
    ),
    Bad(
        "a host cache as large as the memory",
        {"spec.engine.cpuMemSize": 4},
        "spec.engine.cpuMemSize",
        "engine.cpuMemSize 4 (GiB), with engine.npuMemSize -1, leaves nothing of",
    ),
    wrong_value(
        "spec.slo.ttft.target", "half a second", "is not a duration; write a number of up to 7"
    ),
    wrong_value(
        "spec.slo.ttft.target",
        "0.0s",
        "'0.0s' is not a positive duration; give more than 0, such as 50ms",
    ),
    wrong_value("spec.slo.tpot.target", "50", "'50' is not a duration; write a number of up to 7"),
    wrong_value(
        "spec.slo.tpot.target",
        "000ms",
        "'000ms' is not a positive duration; give more than 0, such as 50ms",
    ),
    wrong_value("spec.slo.tpot.target", 50, "must be of type string", "put it in quotes"),
    Bad(
        "a target without a latency",
        {"spec.slo.tpot.percentile": 50},
        "spec.slo.tpot.target",
        "Required value",
        "is missing",
    ),
    Bad(
        "a target for every request",
        {"spec.slo.ttft": {"percentile": 100, "target": "1s"}},
        "spec.slo.ttft.percentile",
        "less than or equal to 99",
        "allowed: 1 to 99",
    ),
    *unmet_targets(),
    wrong_value("spec.server.maxLinkNum", 4097, "less than or equal to 4096", "allowed: 1 to 4096"),
    wrong_value(
        "spec.server.maxRequestLength", 0, "greater than or equal to 1", "allowed: 1 to 100"
    ),
    wrong_value(
        "spec.server.e2eTimeout", 65536, "less than or equal to 65535", "allowed: 1 to 65535"
    ),
    wrong_value("spec.server.apiKeysSecret", "Keys", "'Keys' is not the name of an object"),
    wrong_value("spec.server.apiKeysSecret", "a..b", "'a..b' is not the name of an object"),
    wrong_value("spec.server.apiKeysSecret", "a.-b", "'a.-b' is not the name of an object"),
    *bad_traces(),
    *bad_scaling(),
    wrong_value("spec.scaling.minReplicas", -1, "greater than or equal to 0", "allowed: 0 to 1000"),
    wrong_value("spec.scaling.minReplicas", 1001, "less than or equal to 1000", "too large"),
    wrong_value("spec.resources.cpu", 0.5, "must be of type integer", "expected a whole number"),
    wrong_value(
        "spec.resources.memory", "4GB", "'4GB' is not an amount of memory; write a number and"
    ),
    wrong_value(
        "spec.resources.memory", "0Gi", "'0Gi' is less than one byte of memory; give at least 1"
    ),
    wrong_value("spec.resources.memory", 4, "must be of type string", "put it in quotes"),
    wrong_value("spec.resources.npu", 65, "less than or equal to 64", "allowed: 0 to 64"),
    wrong_value(
        "spec.resources.npuProfile", "910b", "npuProfile '910b' has no meaning while npu is 0"
    ),
    Bad(
        "cards that nothing computes on",
        {"spec.resources.npu": 2, "spec.engine.device": "cpu"},
        "spec.resources.npu",
        "resources.npu 2 reserves cards, and engine.device cpu computes on none of them; leave",
    ),
    Bad(
        "a device without a card",
        {"spec.engine.device": "npu"},
        "spec.resources.npu",
        "engine.device npu computes on cards, and resources.npu is 0; set npu: 1, a card for each",
    ),
    Bad(
        "more cards than ranks",
        {"spec.resources.npu": 2, "spec.resources.npuProfile": "910b"},
        "spec.resources.npu",
        "resources.npu 2 is not the 1 of engine.parallelism's ranks, each of which computes on one",
    ),
    Bad(
        "a KV cache that a card does not take",
        {"spec.resources.npu": 1, "spec.engine.kvCacheDtype": "int8"},
        "spec.engine.kvCacheDtype",
        "engine.kvCacheDtype int8 has no kernel on an NPU yet; leave it out there",
    ),
    Bad(
        "activations that a card does not take",
        {"spec.resources.npu": 1, "spec.engine.dtype": "float32"},
        "spec.engine.dtype",
        "engine.dtype float32 is none that attention on an NPU takes; set bfloat16 or float16",
    ),
    Bad(
        "rows that a card does not take",
        {"spec.resources.npu": 1, "spec.engine.schedule.maxBatchSize": 4097},
        "spec.engine.schedule.maxBatchSize",
        "engine.schedule.maxBatchSize 4097 is more rows than attention on an NPU takes in a step",
    ),
    Bad(
        "host blocks beside a card",
        {"spec.resources.npu": 1, "spec.engine.cpuMemSize": 4},
        "spec.engine.cpuMemSize",
        "engine.cpuMemSize 4 (GiB) leaves nothing of resources.memory 4Gi for the process; lower",
    ),
    Bad(
        "a profile that is no name",
        {"spec.resources.npu": 1, "spec.resources.npuProfile": "910B"},
        "spec.resources.npuProfile",
        "'910B' is not the name of an object",
    ),
    *misfitting_pods(),
    Bad(
        "a variable of KubeRay's",
        {f"{RUNTIME}.env": [{"name": "REDIS_PASSWORD", "value": "open"}]},
        f"{RUNTIME}.env[0].name",
        "'REDIS_PASSWORD' is set by KubeRay; name the Secret of the Redis in",
    ),
    *bad_stores(),
    wrong_value("spec.progressDeadlineSeconds", 29, "greater than or equal to 30", "30 to 86400"),
)
