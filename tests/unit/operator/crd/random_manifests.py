"""Random manifests, on which the API server and the operator must agree."""

from typing import Any

from hypothesis import strategies as st

from tests.unit.operator.crd.forms import GOOD_SOURCE, changed, manifest
from tests.unit.operator.crd.manifests import BAD


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A mapping in which each field stands or not."""
    return st.fixed_dictionaries({}, optional=fields)


def _of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


def documents() -> st.SearchStrategy[dict[str, Any]]:
    """Manifests around the edges of what fits together: many good ones, many bad ones.

    One in three has, beside what it has, a fault of the table of bad manifests.
    """
    faults = _of(*(bad.changes for bad in BAD if None not in bad.changes.values()))
    return st.one_of(_specs(), _specs(), st.builds(changed, _specs(), faults))


def _specs() -> st.SearchStrategy[dict[str, Any]]:
    split = _some(
        enabled=st.booleans(),
        splitChunkTokens=_of(16, 17, 32, 512),
        splitStartType=st.booleans(),
        splitStartBatchSize=_of(0, 8, 16),
        policyType=_of(0, 0, 4, 8),
        prefillChunkSize=_of(0, 16, 101),
        maxNumPartialPrefills=_of(1, 8, 64),
        maxLongPartialPrefills=_of(1, 8),
    )
    # Everything that may go wrong at once would nearly always go wrong.
    policies = _some(
        strategy=_of("static", "continuous", "continuous", "chunked", "splitfuse"),
        prefillPolicyType=_of(0, 2),
        decodePolicyType=_of(0, 3),
        stageSelectPolicy=_of(0, 0, 1, 2),
        supportSelectBatch=st.booleans(),
        dynamicBatchSizeEnable=st.booleans(),
        maxPreemptCount=_of(0, 1, 16),
        maxN=_of(1, 8, 129),
    )
    sizes = _some(
        templateType=_of("Standard", "Mix"),
        cacheBlockSize=_of(16, 100, 128),
        maxPrefillBatchSize=_of(0, 8, 50),
        maxPrefillTokens=_of(16, 100, 8192),
        maxBatchSize=_of(1, 8, 16, 200),
        maxIterTimes=_of(1, 16, 512),
        splitFuse=split,
    )
    schedule = st.one_of(
        sizes,
        st.builds(lambda some, more: some | more, policies, _some(templateType=_of("Mix"))),
        st.builds(lambda some, more: some | more, sizes, policies),
    )
    target = st.fixed_dictionaries(
        {"target": _of("50ms", "0.05s", "1.5s", "0ms", "50")}, optional={"percentile": _of(1, 99)}
    )
    model = st.fixed_dictionaries(
        {"source": _of(GOOD_SOURCE, GOOD_SOURCE, "pvc://claim", "pvc://claim/a/..b", "./tiny")},
        optional={
            "name": _of("tiny", "Tiny-1.5", "-tiny"),
            "quantization": _of("auto", "none", "w8a8"),
            "eosTokenIds": st.lists(_of(0, 151645, 2**24 - 1, 2**24, -1), max_size=2),
            "generationConfig": _of("auto", "none", "vllm"),
            "splitSpecialTokens": st.booleans(),
            "maxSeqLen": _of(16, 17, 100, 8192),
            "maxInputTokenLen": _of(15, 16, 100, 9000),
        },
    )
    parallelism = _some(
        worldSize=_of(1, 2, 4, 4, 64, 65),
        tp=_of(1, 2, 2, 4, 0),
        pp=_of(1, 1, 2, 33),
        dp=_of(-1, 1, 1, 2, 0),
        sp=st.booleans(),
    )
    micro_batches = _some(
        streamOptions=_some(microBatch=st.booleans()),
        ccl=_some(enableMc2=st.sampled_from((False, False, True))),
        graph=_of("cpp", "cpp", "python"),
        unsafeCombinations=st.booleans(),
    )
    resources = _some(
        cpu=_of(1, 4, 64),
        memory=_of("4Gi", "4.5Gi", "5G", "4294967296", "4294967297", "0.5", "4Gib"),
        npu=_of(0, 0, 1, 2),
        npuProfile=_of("910b", "a-b"),
    )
    toleration = _some(
        key=_of("", "npu", "a.b/npu", "n/p/u"),
        operator=_of("Exists", "Equal"),
        value=_of("", "yes"),
        effect=_of("NoSchedule", "NoExecute"),
        tolerationSeconds=_of(0, 60),
    )
    runtime = _some(
        env=st.lists(st.fixed_dictionaries({"name": _of("A", "B", "RAYS", "RAY_A")}), max_size=2),
        tolerations=st.lists(toleration, max_size=1),
        volumes=st.lists(
            _of("a", "b", "c_d").map(lambda name: {"name": name, "emptyDir": {}}), max_size=2
        ),
        volumeMounts=st.lists(
            st.fixed_dictionaries(
                {"name": _of("a", "b"), "mountPath": _of("/a", "/b", "/b/c", "/", "/b/", "c")}
            ),
            max_size=2,
        ),
        nodeSelector=st.dictionaries(
            _of("a", "b.c/D", "b/c/d", "-a"), _of("", "a", "A.b", "a b"), max_size=2
        ),
        gcsFaultToleranceOptions=st.fixed_dictionaries(
            {"redisAddress": _of("redis:6379", "redis://redis:1", "redis", "redis:65536")}
        ),
    )
    spec = st.fixed_dictionaries(
        {"model": model},
        optional={
            "engine": st.builds(
                lambda some, more: some | more,
                _some(
                    npuMemSize=_of(-1, 0, 2, 4, 5),
                    cpuMemSize=_of(0, 1, 2, 4),
                    parallelism=parallelism,
                    schedule=schedule,
                ),
                micro_batches,
            ),
            "slo": _some(ttft=target, tpot=target),
            "resources": resources,
            "runtime": runtime,
            "scaling": _some(
                mode=_of("Manual", "Auto", "Recommend", "External", "auto"),
                replicas=_of(0, 1, 1000),
                minReplicas=_of(1, 0, 3, 1000, 1001),
                maxReplicas=_of(1, 3, 8),
                schedule=st.lists(
                    st.fixed_dictionaries(
                        {
                            "start": _of("0 8 * * *", "0 8 * * FRI-MON", "0 8 * *", "61 * * * *"),
                            "duration": _of("10h", "0h", "10d"),
                            "minReplicas": _of(1, 0),
                        }
                    ),
                    max_size=2,
                ),
            ),
            "observability": _some(
                tracing=st.fixed_dictionaries(
                    {"endpoint": _of("http://a:4318", "https://[::1]/a", "a:4318", "http://a b")},
                    optional={"sampleRatio": _of(0, 0.5, 1, 1.5)},
                )
            ),
        },
    )
    return spec.map(lambda value: manifest({"spec": value}))
