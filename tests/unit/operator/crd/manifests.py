"""Manifests that Kubernetes must accept or refuse; the API server and the operator must agree."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

GOOD_SOURCE: Final = "file:///models/tiny"


def manifest(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The smallest good manifest, with the fields at the given paths set; None takes one away."""
    document: dict[str, Any] = {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny"},
        "spec": {"model": {"source": GOOD_SOURCE}},
    }
    for path, value in (changes or {}).items():
        _set(document, path, value)
    return document


def _set(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        document = document.setdefault(name, {})
    if value is None:
        del document[last]
    else:
        document[last] = deepcopy(value)


SCHEDULE: Final = "spec.engine.schedule"
SPLIT: Final = f"{SCHEDULE}.splitFuse"
RUNTIME: Final = "spec.runtime"

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
    "the longest prompt": {"spec.model.maxSeqLen": 129, "spec.model.maxInputTokenLen": 128},
    "as much output as context": {"spec.model.maxSeqLen": 64, f"{SCHEDULE}.maxIterTimes": 64},
    "the smallest tiles": {f"{SCHEDULE}.cacheBlockSize": 16, f"{SPLIT}.splitChunkTokens": 16},
    "the largest tiles": {f"{SCHEDULE}.cacheBlockSize": 128, f"{SPLIT}.splitChunkTokens": 8192},
    "a cache just below the memory": {
        "spec.engine.npuMemSize": 4,
        "spec.resources.memory": "4.0001Gi",
    },
    "memory in plain bytes": {"spec.resources.memory": "1073741824"},
    "cards of a profile": {"spec.resources.npu": 2, "spec.resources.npuProfile": "910b"},
    "keys": {"spec.server.apiKeysSecret": "tiny-keys"},
    "a patient deadline": {"spec.progressDeadlineSeconds": 86400},
    "pods in full": {
        f"{RUNTIME}.image": "registry.example/tandem:1",
        f"{RUNTIME}.imagePullPolicy": "Always",
        f"{RUNTIME}.imagePullSecrets": ["one", "two"],
        f"{RUNTIME}.env": [{"name": "A"}, {"name": "B", "value": "1"}],
        f"{RUNTIME}.volumes": [
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "two", "hostPath": {"path": "/two"}},
        ],
        f"{RUNTIME}.volumeMounts": [
            {"name": "scratch", "mountPath": "/scratch", "readOnly": True},
            {"name": "scratch", "mountPath": "/again"},
            {"name": "of-the-operators-settings", "mountPath": "/there"},
        ],
        f"{RUNTIME}.nodeSelector": {"kubernetes.io/arch": "arm64"},
        f"{RUNTIME}.tolerations": [
            {"operator": "Exists"},
            {"key": "npu", "value": "yes", "effect": "NoSchedule"},
            {"key": "npu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
        ],
    },
}
"""What is good → the fields that differ from the smallest manifest."""


@dataclass(frozen=True)
class Bad:
    """A manifest with one fault."""

    fault: str
    changes: dict[str, Any]
    field: str
    """Field that the API server names."""

    words: str
    """What the API server says, in part."""

    told: str = ""
    """What the operator says of it, in part; empty: the same words."""


def _volumes(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "emptyDir": {}} for name in names]


def _text(path: str, value: Any, words: str, told: str = "") -> Bad:
    """One field with a wrong value."""
    return Bad(f"{path} {value!r:.40}", {path: value}, path, words, told)


BAD: Final = (
    _text("metadata.name", "a" * 48, "use up to 47"),
    _text("metadata.name", "1tiny", "a letter first"),
    _text("metadata.name", "tiny.v2", "letters, digits and '-'"),
    Bad("no spec", {"spec": None}, "spec", "Required value", "is missing"),
    Bad("no model", {"spec": {}}, "spec.model", "Required value", "is missing"),
    Bad("no source", {"spec.model": {}}, "spec.model.source", "Required value", "is missing"),
    _text("spec.model.name", "tiny model", "'tiny model' is not a model name; use up to 256"),
    _text("spec.model.source", "/models/tiny", "is a bare path; write file:///models/tiny"),
    _text("spec.model.source", "./tiny", "is relative to a manifest, whose folder Kubernetes"),
    _text("spec.model.source", "..", "write file:///absolute/path for a folder of the node, or"),
    _text(
        "spec.model.source",
        "hf://Qwen/Qwen3-8B",
        "is not a source that Kubernetes can mount; write file:///absolute/path",
        "has the scheme 'hf'",
    ),
    _text("spec.model.source", "file://models/tiny", "write file:///absolute/path", "scheme"),
    _text("spec.model.source", "tiny", "or pvc://claim/path", "is neither file:///absolute/path"),
    _text("spec.model.source", "file:///a/../b", "names no folder of the node"),
    _text("spec.model.source", "file:///a/%2E%2e", "names no folder of the node"),
    _text("spec.model.source", "file:///", "names no folder of the node"),
    _text("spec.model.source", "pvc://Models/tiny", "names no folder in a volume claim"),
    _text("spec.model.source", "pvc://models/../tiny", "then a path without '..'"),
    _text("spec.model.maxSeqLen", 1, "greater than or equal to 2", "allowed: 2 or more"),
    _text("spec.model.maxSeqLen", "1024", "must be of type integer", "write it without quotes"),
    _text("spec.model.maxInputTokenLen", 4194305, "less than or equal to 4194304", "too large"),
    Bad(
        "a prompt as long as the context",
        {"spec.model.maxSeqLen": 512, "spec.model.maxInputTokenLen": 512},
        "spec.model.maxInputTokenLen",
        "maxInputTokenLen 512 leaves no room for a new token in maxSeqLen 512; "
        "lower it to at most 511 or raise maxSeqLen",
    ),
    _text("spec.engine.device", "npu", 'supported values: "cpu"', "allowed: cpu"),
    _text("spec.engine.dtype", "Float16", '"float16"', "did you mean 'float16'?"),
    _text("spec.engine.npuMemSize", 0, "0 is neither -1 (all that is left) nor a size in GiB"),
    _text("spec.engine.npuMemSize", -2, "greater than or equal to -1", "is too small"),
    Bad(
        "a cache as large as the memory",
        {"spec.engine.npuMemSize": 4},
        "spec.engine.npuMemSize",
        "engine.npuMemSize 4 (GiB) leaves nothing of resources.memory 4Gi",
    ),
    _text(f"{SCHEDULE}.templateType", "mix", '"Standard", "Mix"', "did you mean 'Mix'?"),
    _text(
        f"{SCHEDULE}.cacheBlockSize", 24, "24 is not a multiple of 16; use 16 or 32", "24 is not"
    ),
    _text(f"{SCHEDULE}.cacheBlockSize", 144, "less than or equal to 128", "is too large"),
    _text(f"{SCHEDULE}.maxBatchSize", 0, "greater than or equal to 1", "allowed: 1 to 819200"),
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
        "templateType Standard cuts no prompt",
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
    _text(f"{SPLIT}.enabled", "yes", "must be of type boolean", "where true or false is wanted"),
    _text(f"{SPLIT}.splitChunkTokens", 8200, "less than or equal to 8192", "too large"),
    _text(f"{SPLIT}.splitChunkTokens", 100, "use 96 or 112", "100 is not a multiple of 16"),
    Bad(
        "splitting from more rows than there are",
        {f"{SCHEDULE}.maxBatchSize": 8, f"{SPLIT}.splitStartBatchSize": 9},
        f"{SPLIT}.splitStartBatchSize",
        "splitFuse.splitStartBatchSize 9 is larger than maxBatchSize 8",
    ),
    _text("spec.server.maxLinkNum", 4097, "less than or equal to 4096", "allowed: 1 to 4096"),
    _text("spec.server.maxRequestLength", 0, "greater than or equal to 1", "allowed: 1 to 100"),
    _text("spec.server.apiKeysSecret", "Keys", "'Keys' is not the name of an object"),
    _text("spec.scaling.minReplicas", 0, "greater than or equal to 1", "allowed: 1 or more"),
    _text("spec.resources.cpu", 0.5, "must be of type integer", "a whole number is wanted"),
    _text("spec.resources.memory", "4GB", "'4GB' is not an amount of memory; write a number and"),
    _text("spec.resources.memory", "0Gi", "'0Gi' is no memory at all; give at least 1"),
    _text("spec.resources.memory", 4, "must be of type string", "put it in quotes"),
    _text("spec.resources.npu", 65, "less than or equal to 64", "allowed: 0 to 64"),
    _text("spec.resources.npuProfile", "910b", "npuProfile '910b' has no meaning while npu is 0"),
    Bad(
        "a profile that is no name",
        {"spec.resources.npu": 1, "spec.resources.npuProfile": "910B"},
        "spec.resources.npuProfile",
        "'910B' is not the name of an object",
    ),
    _text(f"{RUNTIME}.image", "", "at least 1 chars long", "at least 1 char"),
    _text(f"{RUNTIME}.imagePullPolicy", "always", '"IfNotPresent"', "did you mean 'Always'?"),
    Bad(
        "a secret that is no name",
        {f"{RUNTIME}.imagePullSecrets": ["one", "two_"]},
        f"{RUNTIME}.imagePullSecrets[1]",
        "'two_' is not the name of an object",
    ),
    Bad(
        "a secret twice",
        {f"{RUNTIME}.imagePullSecrets": ["one", "one"]},
        f"{RUNTIME}.imagePullSecrets[1]",
        "Duplicate value",
        "'one' stands here 2 times",
    ),
    Bad(
        "a variable of Ray's",
        {f"{RUNTIME}.env": [{"name": "RAY_ADDRESS", "value": "elsewhere"}]},
        f"{RUNTIME}.env[0].name",
        "'RAY_ADDRESS' is set by Tandem; names that begin with RAY_ or TANDEM_ are taken",
    ),
    Bad(
        "a variable that no shell could name",
        {f"{RUNTIME}.env": [{"name": "A"}, {"name": "1A"}]},
        f"{RUNTIME}.env[1].name",
        "'1A' is not the name of a variable",
    ),
    Bad(
        "a variable twice",
        {f"{RUNTIME}.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        f"{RUNTIME}.env[1]",
        "Duplicate value",
        "'A' stands here 2 times; keep one",
    ),
    Bad(
        "a variable without a name",
        {f"{RUNTIME}.env": [{"value": "1"}]},
        f"{RUNTIME}.env[0].name",
        "Required value",
        "is missing",
    ),
    Bad(
        "a volume twice",
        {f"{RUNTIME}.volumes": _volumes("a", "a")},
        f"{RUNTIME}.volumes[1]",
        "Duplicate value",
        "'a' stands here 2 times",
    ),
    Bad(
        "a volume without a name",
        {f"{RUNTIME}.volumes": [{"emptyDir": {}}]},
        f"{RUNTIME}.volumes[0].name",
        "Required value",
        "is missing",
    ),
    Bad(
        "a mount without a path",
        {f"{RUNTIME}.volumes": _volumes("a"), f"{RUNTIME}.volumeMounts": [{"name": "a"}]},
        f"{RUNTIME}.volumeMounts[0].mountPath",
        "Required value",
        "is missing",
    ),
    Bad(
        "a mount of what cannot be a volume",
        {f"{RUNTIME}.volumeMounts": [{"name": "a_b", "mountPath": "/x"}]},
        f"{RUNTIME}.volumeMounts[0].name",
        "'a_b' is not the name of an object",
    ),
    Bad(
        "two mounts at one path",
        {
            f"{RUNTIME}.volumes": _volumes("a", "b"),
            f"{RUNTIME}.volumeMounts": [
                {"name": "a", "mountPath": "/x"},
                {"name": "b", "mountPath": "/x"},
            ],
        },
        f"{RUNTIME}.volumeMounts[1]",
        "Duplicate value",
        "'/x' stands here 2 times",
    ),
    Bad(
        "a volume whose name no pod may have",
        {f"{RUNTIME}.volumes": _volumes("My_Volume")},
        f"{RUNTIME}.volumes[0].name",
        "'My_Volume' is not the name of an object",
    ),
    Bad(
        "a toleration of everything with a value",
        {f"{RUNTIME}.tolerations": [{"operator": "Exists", "value": "x"}]},
        f"{RUNTIME}.tolerations[0].value",
        "value 'x' has no meaning with operator Exists",
    ),
    Bad(
        "a toleration of nothing",
        {f"{RUNTIME}.tolerations": [{"effect": "NoSchedule"}]},
        f"{RUNTIME}.tolerations[0].key",
        "key is missing; operator Equal needs one, or set operator: Exists",
    ),
    Bad(
        "patience without an end to it",
        {f"{RUNTIME}.tolerations": [{"operator": "Exists", "tolerationSeconds": 5}]},
        f"{RUNTIME}.tolerations[0].tolerationSeconds",
        "tolerationSeconds 5 has no meaning without effect NoExecute",
    ),
    Bad(
        "a label that is a number",
        {f"{RUNTIME}.nodeSelector": {"a": 1}},
        f"{RUNTIME}.nodeSelector.a",
        "must be of type string",
        "where text is wanted",
    ),
    _text("spec.progressDeadlineSeconds", 29, "greater than or equal to 30", "30 to 86400"),
)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping in which each field stands or not."""
    return st.fixed_dictionaries({}, optional=fields)


def _of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def documents() -> st.SearchStrategy[dict[str, Any]]:
    """Manifests around the edges of what fits together: many good ones, many bad ones."""
    split = _some(
        enabled=st.booleans(),
        splitChunkTokens=_of(16, 17, 32, 512),
        splitStartType=st.booleans(),
        splitStartBatchSize=_of(0, 8, 16),
    )
    schedule = _some(
        templateType=_of("Standard", "Mix"),
        cacheBlockSize=_of(16, 100, 128),
        maxPrefillBatchSize=_of(0, 8, 50),
        maxPrefillTokens=_of(16, 100, 8192),
        maxBatchSize=_of(1, 8, 16, 200),
        maxIterTimes=_of(1, 16, 512),
        splitFuse=split,
    )
    model = st.fixed_dictionaries(
        {"source": _of(GOOD_SOURCE, GOOD_SOURCE, "pvc://claim", "pvc://claim/a/..b", "./tiny")},
        optional={
            "name": _of("tiny", "Tiny-1.5", "-tiny"),
            "maxSeqLen": _of(16, 17, 100, 8192),
            "maxInputTokenLen": _of(15, 16, 100, 9000),
        },
    )
    resources = _some(
        cpu=_of(1, 64),
        memory=_of("4Gi", "4.5Gi", "5G", "4294967296", "4294967297", "0.5", "4Gib"),
        npu=_of(0, 1),
        npuProfile=_of("910b", "a-b"),
    )
    toleration = _some(
        key=_of("", "npu"),
        operator=_of("Exists", "Equal"),
        value=_of("", "yes"),
        effect=_of("NoSchedule", "NoExecute"),
        tolerationSeconds=_of(0, 60),
    )
    runtime = _some(
        env=st.lists(st.fixed_dictionaries({"name": _of("A", "B", "RAYS", "RAY_A")}), max_size=2),
        tolerations=st.lists(toleration, max_size=1),
    )
    spec = st.fixed_dictionaries(
        {"model": model},
        optional={
            "engine": _some(npuMemSize=_of(-1, 0, 4, 5), schedule=schedule),
            "resources": resources,
            "runtime": runtime,
            "scaling": _some(minReplicas=_of(1, 3)),
        },
    )
    return spec.map(lambda value: manifest({"spec": value}))
