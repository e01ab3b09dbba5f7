"""The cost of a change, and that the Serve document agrees."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tandem_serve.api.changes import Change, ChangeClass, class_of, classify
from tandem_serve.api.document import ServeOptions, serve_document
from tandem_serve.api.manifest import parse_manifest
from tandem_serve.api.problems import is_list, part_of
from tandem_serve.api.spec import InferenceService, InferenceServiceSpec
from tandem_serve.cli import app, apply

MANUAL = Path(__file__).parents[4] / "docs" / "reference" / "manifest.md"
# A machine that has much else to do makes no test fail.
LIVE, IN_PLACE, REPLACE = ChangeClass.LIVE, ChangeClass.IN_PLACE, ChangeClass.REPLACE


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def with_host_memory(engine: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The same with cpuMemSize, which must not be 0 where sequences are swapped out."""
    swaps = engine.get("schedule", {}).get("maxPreemptCount", 0) > 0
    return st.sampled_from([1] if swaps else [0, 1]).map(lambda size: engine | {"cpuMemSize": size})


schedules = optional(
    cacheBlockSize=st.integers(1, 8).map(lambda blocks: 16 * blocks),
    maxPrefillBatchSize=st.integers(0, 10),
    maxPrefillTokens=st.integers(2048, 16384),
    maxBatchSize=st.integers(50, 300),
    maxIterTimes=st.integers(1, 64),
    splitFuse=optional(
        splitChunkTokens=st.integers(1, 64).map(lambda tiles: 16 * tiles),
        splitStartType=st.booleans(),
        splitStartBatchSize=st.integers(0, 20),
        splitType=st.booleans(),
        prefillChunkSize=st.integers(0, 2048),
        maxNumPartialPrefills=st.integers(1, 64),
    ),
    templateType=st.sampled_from(["Standard", "Mix"]),
    maxN=st.integers(1, 50),
    maxPreemptCount=st.sampled_from([0, 1]),
    prefillPolicyType=st.integers(0, 3),
    decodePolicyType=st.integers(0, 3),
    supportSelectBatch=st.booleans(),
    enablePrefixCache=st.booleans(),
    noEvict=st.booleans(),
    prefillExpectedTime=st.integers(1, 10000),
)
# The same ranks in several ways, and those that four threads are enough for.
ranks = st.sampled_from(
    [
        *({}, {"worldSize": 1}, {"dp": -1}),
        *({"worldSize": 2}, {"tp": 2}, {"worldSize": 2, "tp": 2, "pp": 1, "sp": False}),
        *({"tp": 2, "sp": True}, {"pp": 2}, {"dp": 2}, {"worldSize": 4, "pp": 2}),
    ]
)
micro_batches: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        *({}, {"unsafeCombinations": True}, {"unsafeCombinations": False, "graph": "cpp"}),
        *({"streamOptions": {}}, {"ccl": {"enableMc2": False}}),
        {"streamOptions": {"microBatch": True}, "unsafeCombinations": True},
    ]
)
targets = optional(
    **{
        name: st.fixed_dictionaries(
            {"target": st.sampled_from(["50ms", "0.05s", "1s", "1000ms"])},
            optional={"percentile": st.sampled_from([90, 99])},
        )
        for name in ("ttft", "tpot")
    }
)
specs = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"source": st.sampled_from(["file:///models/a", "pvc://models/a", "pvc://models/b"])},
            optional={
                "name": st.sampled_from(["a", "b"]),
                "eosTokenIds": st.lists(st.integers(0, 9), min_size=1, max_size=2),
                "generationConfig": st.sampled_from(["auto", "none"]),
                "splitSpecialTokens": st.booleans(),
                "maxSeqLen": st.integers(1025, 2048),
                "maxInputTokenLen": st.integers(1, 1024),
            },
        )
    },
    optional={
        "engine": optional(
            dtype=st.sampled_from(["auto", "bfloat16", "float32"]),
            kvCacheDtype=st.sampled_from(["auto", "int8"]),
            npuMemSize=st.sampled_from([-1, 1]),
            parallelism=ranks,
            schedule=schedules,
        )
        .flatmap(with_host_memory)
        .flatmap(lambda engine: micro_batches.map(lambda more: engine | more)),
        "slo": targets,
        "server": optional(
            strict=st.booleans(),
            allowedOrigins=st.lists(st.sampled_from(["*", "https://a.b"]), max_size=1),
            maxLinkNum=st.integers(1, 4096),
            maxRequestLength=st.integers(1, 100),
            e2eTimeout=st.integers(1, 65535),
            apiKeysSecret=st.sampled_from(["keys", "other-keys"]),
        ),
        "scaling": optional(minReplicas=st.integers(0, 4)),
        "resources": optional(
            cpu=st.integers(1, 4),
            memory=st.sampled_from(["3Gi", "4Gi"]),
        ),
    },
)


def with_a_thread_for_each_rank(spec: dict[str, Any]) -> dict[str, Any]:
    if spec.get("engine", {}).get("parallelism"):
        spec["resources"] = spec.get("resources", {}) | {"cpu": 4}
    return spec


def service_of(spec: dict[str, Any]) -> InferenceService:
    document = {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny"},
        "spec": spec,
    }
    return parse_manifest(yaml.safe_dump(document), folder=Path("/"))


def with_a_template_that_keeps_targets(spec: dict[str, Any]) -> dict[str, Any]:
    schedule = spec.get("engine", {}).get("schedule", {})
    if spec.get("slo") and schedule.get("templateType") == "Standard":
        schedule["templateType"] = "Mix"
    return spec


services = (
    specs.map(with_a_template_that_keeps_targets).map(with_a_thread_for_each_rank).map(service_of)
)


def classes_by_document(old: InferenceService, new: InferenceService) -> set[ChangeClass]:
    """The effect on Ray when the document of `new` follows that of `old` (measured facts)."""
    before = serve_document(old, ServeOptions())["applications"][0]
    after = serve_document(new, ServeOptions())["applications"][0]
    first, second = before["deployments"][0], after["deployments"][0]
    classes = set()
    if before["args"] != after["args"]:
        classes.add(REPLACE)
    if first["ray_actor_options"] != second["ray_actor_options"]:
        classes.add(REPLACE)
    if first["user_config"] != second["user_config"]:
        classes.add(LIVE)
    if first.get("num_replicas") != second.get("num_replicas"):
        classes.add(IN_PLACE)
    return classes


@given(services)
def test_a_service_does_not_differ_from_itself(service: InferenceService) -> None:
    assert classify(service, service) == []


@given(services, services)
def test_the_classes_are_what_the_serve_document_makes_ray_do(
    old: InferenceService, new: InferenceService
) -> None:
    assert {change.change_class for change in classify(old, new)} == classes_by_document(old, new)


@given(services, services)
def test_the_way_back_undoes_the_same_fields(old: InferenceService, new: InferenceService) -> None:
    there = {change.path: (change.old, change.new) for change in classify(old, new)}
    back = {change.path: (change.new, change.old) for change in classify(new, old)}

    assert there == back


def test_every_field_of_the_spec_has_exactly_one_class() -> None:
    for path in fields_of(InferenceServiceSpec, "spec"):
        assert class_of(path) in ChangeClass


@pytest.mark.parametrize(
    ("field", "value", "change_class"),
    [
        ("runtime", {"image": "tandem:2"}, REPLACE),
        ("runtime", {"env": [{"name": "A", "value": "b"}]}, REPLACE),
        ("runtime", {"nodeSelector": {"zone": "a"}}, REPLACE),
        ("runtime", {"tolerations": [{"key": "npu", "operator": "Exists"}]}, REPLACE),
        ("progressDeadlineSeconds", 60, IN_PLACE),
    ],
)
def test_what_ray_does_not_see_has_a_class_all_the_same(
    field: str, value: Any, change_class: ChangeClass
) -> None:
    model = {"source": "file:///models/a"}

    changes = classify(service_of({"model": model}), service_of({"model": model, field: value}))

    assert {change.change_class for change in changes} == {change_class}
    assert all(change.path.startswith(f"spec.{field}") for change in changes)


def test_the_manual_lists_every_field_with_its_class() -> None:
    rows = {
        cells[1].strip(" `"): cells[-2].strip()
        for line in MANUAL.read_text().splitlines()
        if line.startswith("| `spec.")
        for cells in [line.split("|")]
    }

    fields = fields_of(InferenceServiceSpec, "spec")

    assert rows == {field: class_of(field).words for field in fields}


@pytest.mark.parametrize("change_class", ChangeClass)
def test_manual_and_help_tell_the_meaning_of_each_class(change_class: ChangeClass) -> None:
    beginning = f"| {change_class.words} | {change_class.meaning.capitalize()}"
    (command,) = (command for command in app.registered_commands if command.callback is apply)

    assert any(line.startswith(beginning) for line in MANUAL.read_text().splitlines())
    assert f"{change_class.words}[/" in str(command.epilog)
    assert f"({change_class.meaning})" in str(command.epilog)


def fields_of(model: type[BaseModel], path: str) -> list[str]:
    """Paths of the fields that hold no fields of the form themselves; a list is one field."""
    found = []
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}"
        part = None if is_list(field) else part_of(field)
        found += fields_of(part, here) if part else [here]
    return found


def test_a_change_has_path_values_and_class() -> None:
    model = {"source": "file:///models/a"}
    old = service_of({"model": model})
    new = service_of(
        {
            "model": model,
            "engine": {"schedule": {"maxIterTimes": 64, "cacheBlockSize": 16}},
            "scaling": {"minReplicas": 2},
        }
    )

    assert classify(old, new) == [
        Change("spec.engine.schedule.cacheBlockSize", 128, 16, REPLACE),
        Change("spec.engine.schedule.maxIterTimes", 512, 64, LIVE),
        Change("spec.scaling.minReplicas", 1, 2, IN_PLACE),
    ]


@pytest.mark.parametrize(
    ("path", "change_class"),
    [
        ("spec.engine.cpuMemSize", REPLACE),
        ("spec.engine.schedule.strategy", LIVE),
        ("spec.engine.schedule.noEvict", LIVE),
        ("spec.engine.schedule.enablePrefixCache", LIVE),
        ("spec.engine.schedule.maxPreemptCount", LIVE),
        ("spec.engine.schedule.splitFuse.prefillChunkSize", LIVE),
        ("spec.slo.ttft.target", LIVE),
        ("spec.slo.tpot.percentile", LIVE),
    ],
)
def test_scheduling_is_live_and_host_memory_is_not(path: str, change_class: ChangeClass) -> None:
    assert class_of(path) == change_class


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"slo": {"tpot": {"target": "50ms"}}}, {"slo": {"tpot": {"target": "0.05s"}}}),
        ({"slo": {}}, {"slo": {"ttft": None}}),
        ({}, {"slo": {}}),
        *(
            ({"engine": {"schedule": first}}, {"engine": {"schedule": second}})
            for first, second in [
                ({"supportSelectBatch": True}, {"stageSelectPolicy": 1}),
                ({}, {"strategy": "continuous"}),
                ({"templateType": "Mix"}, {"templateType": "Mix", "strategy": "splitfuse"}),
                ({"templateType": "Mix"}, {"templateType": "Mix", "supportSelectBatch": True}),
                ({}, {"maxN": 128}),
                ({"maxBatchSize": 8}, {"maxBatchSize": 8, "maxN": 8}),
                ({}, {"splitFuse": {"prefillChunkSize": 0}}),
                (
                    {"splitFuse": {"maxNumPartialPrefills": 4}},
                    {"splitFuse": {"maxNumPartialPrefills": 4, "maxLongPartialPrefills": 4}},
                ),
            ]
        ),
    ],
)
def test_what_means_the_same_is_no_change(one: dict[str, Any], other: dict[str, Any]) -> None:
    model = {"model": {"source": "file:///models/a"}}

    assert classify(service_of(model | one), service_of(model | other)) == []


def test_a_target_that_is_given_or_kept_otherwise_is_a_live_change() -> None:
    model = {"model": {"source": "file:///models/a"}}
    none = service_of(model)
    fast, faster = (
        service_of(model | {"slo": {"tpot": {"target": target}}}) for target in ("50ms", "0.02s")
    )

    assert classify(none, fast) == [
        # Values that the SLO chooses where the manifest does not.
        Change("spec.engine.schedule.templateType", "Standard", "Mix", LIVE),
        Change("spec.engine.schedule.strategy", "continuous", "splitfuse", LIVE),
        Change("spec.engine.schedule.maxIterTimes", 512, None, LIVE),
        Change("spec.engine.schedule.splitFuse.enabled", old=False, new=True, change_class=LIVE),
        Change("spec.engine.schedule.splitFuse.splitStartBatchSize", 16, 0, LIVE),
        Change("spec.slo.tpot.percentile", None, 90, LIVE),
        Change("spec.slo.tpot.target", None, "50ms", LIVE),
    ]
    assert classify(fast, faster) == [Change("spec.slo.tpot.target", "50ms", "20ms", LIVE)]


def test_another_name_is_another_service() -> None:
    old = service_of({"model": {"source": "file:///models/a"}})
    document = old.manifest() | {"metadata": {"name": "other"}}
    new = InferenceService.model_validate(document)

    with pytest.raises(ValueError, match="'other' is another service than 'tiny'"):
        classify(old, new)


def test_a_field_that_cannot_change_has_no_class() -> None:
    with pytest.raises(KeyError):
        class_of("apiVersion")
