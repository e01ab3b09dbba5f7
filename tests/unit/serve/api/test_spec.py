"""Manifests, and the problems found in them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tandem_serve.api.manifest import ManifestError, load_manifest, parse_manifest
from tandem_serve.api.problems import part_of
from tandem_serve.api.quantity import parse_memory
from tandem_serve.api.spec import InferenceService

FOLDER = Path("/models")

SMALLEST = """
apiVersion: serving.tandem.dev/v1alpha1
kind: InferenceService
metadata: {name: tiny}
spec: {model: {source: file:///models/tiny}}
"""


def manifest(**spec: Any) -> str:
    document = yaml.safe_load(SMALLEST)
    document["spec"] |= spec
    return yaml.safe_dump(document)


def problems_of(text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text, folder=FOLDER)
    return caught.value.problems


def models_below(model: type[BaseModel]) -> list[type[BaseModel]]:
    parts = [part for field in model.model_fields.values() if (part := part_of(field))]
    return [model, *(found for part in parts for found in models_below(part))]


def test_the_smallest_manifest_is_a_name_and_a_source() -> None:
    service = parse_manifest(SMALLEST, folder=FOLDER)

    assert service.model_name == "tiny"
    assert service.spec.model.path == "/models/tiny"
    assert service.spec.server.max_link_num == 1000
    assert service.spec.server.max_request_length == 4
    assert service.spec.scaling.min_replicas == 1
    assert service.spec.resources.memory_bytes == 4 * 2**30
    assert service.spec.engine.schedule.max_batch_size == 200


@pytest.mark.parametrize("model", models_below(InferenceService), ids=lambda model: model.__name__)
def test_every_field_is_described(model: type[BaseModel]) -> None:
    assert all(field.description for field in model.model_fields.values())


def test_a_relative_source_starts_at_the_manifest(tmp_path: Path) -> None:
    file = tmp_path / "isvc.yaml"
    file.write_text(manifest(model={"source": "../a model"}))

    service = load_manifest(file)

    assert service.spec.model.source == f"file://{tmp_path.parent}/a%20model"
    assert service.spec.model.path == f"{tmp_path.parent}/a model"


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("pvc://models", "/mnt/claims/models"),
        ("pvc://models/", "/mnt/claims/models"),
        ("pvc://models/tiny/v1/", "/mnt/claims/models/tiny/v1"),
        ("pvc://team.models/tiny", "/mnt/claims/team.models/tiny"),
    ],
)
def test_a_source_in_a_volume_claim_is_a_folder_below_its_mount(source: str, path: str) -> None:
    model = parse_manifest(manifest(model={"source": source}), folder=FOLDER).spec.model

    assert model.source == source
    assert model.path == path
    assert model.claim == source.removeprefix("pvc://").partition("/")[0]


def test_a_folder_is_in_no_volume_claim() -> None:
    assert parse_manifest(SMALLEST, folder=FOLDER).spec.model.claim is None


def test_the_two_examples_differ_in_their_source_alone() -> None:
    examples = Path(__file__).parents[4] / "examples" / "tandem-tiny"
    on_kubernetes, here = (
        yaml.safe_load((examples / name).read_text()) for name in ("isvc.yaml", "local.yaml")
    )

    assert here["spec"]["model"].pop("source") == "./"
    assert on_kubernetes["spec"]["model"].pop("source") == "file:///models/tandem-tiny"
    assert here == on_kubernetes


def test_what_kubernetes_adds_to_an_object_is_ignored() -> None:
    document = yaml.safe_load(SMALLEST)
    document["metadata"] |= {
        "uid": "1",
        "generation": 3,
        "creationTimestamp": "2026-11-21T14:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
        "labels": {"team": "a"},
    }
    document["status"] = {"url": "http://tiny"}

    service = parse_manifest(yaml.safe_dump(document), folder=FOLDER)

    assert service.metadata.labels == {"team": "a"}


def test_what_was_not_written_stays_unwritten() -> None:
    service = parse_manifest(SMALLEST, folder=FOLDER)

    assert service.manifest() == yaml.safe_load(SMALLEST)


def test_resolved_defaults_read_back_as_the_same_service() -> None:
    text = manifest(engine={"schedule": {"maxBatchSize": 8}})
    resolved = parse_manifest(text, folder=FOLDER).resolved()

    again = parse_manifest(yaml.safe_dump(_without_nulls(resolved)), folder=FOLDER)

    assert again.resolved() == resolved
    assert resolved["spec"]["engine"]["schedule"]["maxPrefillBatchSize"] == 8


def _without_nulls(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    return {key: _without_nulls(value) for key, value in document.items() if value is not None}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            {"engine": {"schedule": {"maxBatchSize": 0}}},
            "spec.engine.schedule.maxBatchSize: 0 is too small; allowed: 1 to 819200 (default 200)",
        ),
        (
            {"server": {"maxLinkNum": 5000}},
            "spec.server.maxLinkNum: 5000 is too large; allowed: 1 to 4096 (default 1000)",
        ),
        (
            {"engine": {"schedule": {"templateType": "mix"}}},
            "spec.engine.schedule.templateType: 'mix' is not one of its values "
            "(did you mean 'Mix'?); allowed: Standard, Mix (default 'Standard')",
        ),
        (
            {"engine": {"schedule": {"maxBatchSiz": 8}}},
            "spec.engine.schedule.maxBatchSiz: unknown field; did you mean 'maxBatchSize'?",
        ),
        (
            {"engine": {"schedule": {"max_batch_size": 8}}},
            "spec.engine.schedule.max_batch_size: unknown field; did you mean 'maxBatchSize'?",
        ),
        (
            {"resources": {"gpus": 1}},
            "spec.resources.gpus: unknown field; known fields are cpu, memory, npu, npuProfile",
        ),
        (
            {"resources": {"memory": "4GB"}},
            "spec.resources.memory: '4GB' is not an amount of memory; write a number and a unit "
            "out of Ki, Mi, Gi, Ti, k, M, G, T, such as 2Gi",
        ),
        (
            {"resources": {"memory": 4}},
            "spec.resources.memory: 4 is a number, expected text; put it in quotes",
        ),
        (
            {"resources": {"cpu": "2"}},
            "spec.resources.cpu: '2' is text, expected a whole number; "
            "write it without quotes; allowed: 1 or more (default 1)",
        ),
        (
            {"scaling": []},
            "spec.scaling: this is a list, expected a mapping",
        ),
        (
            {"scaling": {"minReplicas": True}},
            "spec.scaling.minReplicas: true is a boolean (YAML reads yes, no, on and off as "
            "booleans, too), expected a whole number; allowed: 0 to 1000 (default 1)",
        ),
        (
            {"resources": {"npu": 65}},
            "spec.resources.npu: 65 is too large; allowed: 0 to 64 (default 0)",
        ),
        (
            {"server": {"apiKeysSecret": "My_Keys"}},
            "spec.server.apiKeysSecret: 'My_Keys' is not the name of an object; use up to 253 "
            "lower-case letters, digits, '-' and '.', a letter or digit first and last and beside "
            "each '.'",
        ),
        (
            {"runtime": {"volumeMounts": [{"name": "a", "mountPath": "/"}]}},
            "spec.runtime.volumeMounts.0.mountPath: '/' is not a mount path; write an "
            "absolute path below /, without ':', '.', '..' and a '/' at its end, such as /data",
        ),
        (
            {"runtime": {"volumeMounts": [{"name": "a", "mountPath": "/a"}]}},
            "spec.runtime: volumeMounts names the volume 'a', which is none of volumes; "
            "add it there, or name one that is",
        ),
        (
            {"runtime": {"nodeSelector": {"a b": "c"}}},
            "spec.runtime.nodeSelector: 'a b' is not the key of a label; use up to 63 letters, "
            "digits, '-', '_' and '.', a letter or digit first and last, and before it, if at "
            "all, a domain in lower-case letters and a '/'",
        ),
        (
            {"progressDeadlineSeconds": 10},
            "spec.progressDeadlineSeconds: 10 is too small; allowed: 30 to 86400 (default 600)",
        ),
        (
            {"engine": {"npuMemSize": 0}},
            "spec.engine.npuMemSize: 0 is neither -1 (all that is left) nor a size in GiB; "
            "allowed: -1, or 1 or more",
        ),
        (
            {"engine": {"cpuMemSize": 1048577}},
            "spec.engine.cpuMemSize: 1048577 is too large; allowed: 0 to 1048576 (default 0)",
        ),
        (
            {"engine": {"schedule": {"prefillPolicyType": 4}}},
            "spec.engine.schedule.prefillPolicyType: 4 is not one of its values; "
            "allowed: 0, 1, 2, 3 (default 0)",
        ),
        (
            {"engine": {"schedule": {"splitFuse": {"policyType": "4"}}}},
            "spec.engine.schedule.splitFuse.policyType: '4' is text, expected "
            "a whole number; write it without quotes; allowed: 0, 4, 5, 6, 7 (default 0)",
        ),
        (
            {"engine": {"schedule": {"stageSelectPolicy": True}}},
            "spec.engine.schedule.stageSelectPolicy: true is a boolean (YAML reads yes, no, "
            "on and off as booleans, too), expected a whole number; allowed: 0, 1, 2 "
            "(default 0)",
        ),
        (
            {"engine": {"schedule": {"strategy": "chunk"}}},
            "spec.engine.schedule.strategy: 'chunk' is not one of its values (did you mean "
            "'chunked'?); allowed: static, dynamic, continuous, chunked, splitfuse, speculative",
        ),
        (
            {"slo": {"ttft": {"target": "soon"}}},
            "spec.slo.ttft.target: 'soon' is not a duration; write a number of up to 7 digits "
            "(and 3 behind the point) and a unit, s or ms, such as 500ms or 1.5s",
        ),
        (
            {"slo": {"tpot": {"target": 50}}},
            "spec.slo.tpot.target: 50 is a number, expected text; put it in quotes",
        ),
        (
            {"slo": {"tpot": {"percentile": 99}}},
            "spec.slo.tpot.target: is missing; it has no default",
        ),
        (
            {"slo": {"tpot": {"target": "50ms", "percentile": 0}}},
            "spec.slo.tpot.percentile: 0 is too small; allowed: 1 to 99 (default 90)",
        ),
        (
            {"slo": {"itl": {"target": "50ms"}}},
            "spec.slo.itl: unknown field; known fields are ttft, tpot",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_words(spec: dict[str, Any], problem: str) -> None:
    assert problems_of(manifest(**spec)) == [problem]


@pytest.mark.parametrize(
    ("source", "way_out"),
    [
        ("/models/tiny", "write file:///models/tiny"),
        ("tiny", "write ./tiny for a folder beside the manifest"),
        ("hf://Qwen/Qwen3-8B", "has the scheme 'hf'"),
        ("file://relative", "allowed: file:///absolute/path"),
        ("pvc://", "write pvc://claim/path"),
        ("pvc:/models/tiny", "write pvc://claim/path"),
        ("pvc://Models/tiny", "the claim's name in lower-case letters"),
        ("pvc://models/../tiny", "a path without '..'"),
    ],
)
def test_a_source_of_another_form_is_refused_with_a_way_out(source: str, way_out: str) -> None:
    (problem,) = problems_of(manifest(model={"source": source}))

    assert problem.startswith("spec.model.source: ")
    assert way_out in problem


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"model": {"source": "./m", "maxSeqLen": 512, "maxInputTokenLen": 512}},
            "maxInputTokenLen 512 leaves no room",
        ),
        (
            {
                "model": {"source": "./m", "maxSeqLen": 256},
                "engine": {"schedule": {"maxIterTimes": 257}},
            },
            "maxIterTimes 257 is larger than model.maxSeqLen 256",
        ),
        (
            {
                "model": {"source": "./m", "maxInputTokenLen": 600},
                "engine": {"schedule": {"maxPrefillTokens": 512}},
            },
            "maxPrefillTokens 512 is smaller than model.maxInputTokenLen 600",
        ),
        (
            {"engine": {"npuMemSize": 4}},
            "npuMemSize 4 (GiB) leaves nothing of resources.memory 4Gi for",
        ),
        (
            {"resources": {"npuProfile": "atlas"}},
            "npuProfile 'atlas' has no meaning while npu is 0",
        ),
        (
            {"engine": {"schedule": {"splitFuse": {"enabled": True}}}},
            "splitFuse.enabled needs templateType Mix",
        ),
        (
            {"engine": {"schedule": {"maxPreemptCount": 3}}},
            "engine.schedule.maxPreemptCount 3 swaps out to host memory, and engine.cpuMemSize is "
            "0; give engine.cpuMemSize at least 1 (GiB)",
        ),
        (
            {"engine": {"cpuMemSize": 3, "npuMemSize": 1}},
            "cpuMemSize 3 (GiB), with engine.npuMemSize 1, leaves nothing of resources.memory 4Gi "
            "for",
        ),
        (
            {
                "model": {"source": "./m", "maxInputTokenLen": 600},
                "engine": {"schedule": {"maxPrefillTokens": 512, "strategy": "static"}},
            },
            "only templateType Mix and strategy chunked cut prompts",
        ),
    ],
)
def test_values_that_do_not_fit_together_are_refused(spec: dict[str, Any], words: str) -> None:
    (problem,) = problems_of(manifest(**spec))

    assert words in problem


def test_defaults_never_clash_with_what_is_written() -> None:
    text = manifest(
        model={"source": "./m", "maxSeqLen": 64, "maxInputTokenLen": 32},
        engine={"schedule": {"maxBatchSize": 2}},
    )

    assert parse_manifest(text, folder=FOLDER).spec.model.max_seq_len == 64


@pytest.mark.parametrize("cutting", [{"templateType": "Mix"}, {"strategy": "chunked"}], ids=str)
def test_a_prompt_may_exceed_a_step_where_prompts_are_cut(cutting: dict[str, str]) -> None:
    text = manifest(
        model={"source": "./m", "maxInputTokenLen": 600},
        engine={"schedule": {"maxPrefillTokens": 512} | cutting},
    )

    assert parse_manifest(text, folder=FOLDER).spec.engine.schedule.cuts_prompts


def test_all_problems_are_listed_at_once() -> None:
    text = manifest(
        model={"name": "on-", "sauce": "x"},
        engine={"schedule": {"maxBatchSize": 0, "cacheBlockSize": 17}},
    )

    found = {problem.partition(":")[0] for problem in problems_of(text)}

    assert found == {
        "spec.model.sauce",
        "spec.model.name",
        "spec.model.source",
        "spec.engine.schedule.maxBatchSize",
        "spec.engine.schedule.cacheBlockSize",
    }


@pytest.mark.parametrize("name", ["Tiny", "1st", "a_b", "a-", "a" * 64, ""])
def test_a_name_that_is_no_dns_label_is_refused(name: str) -> None:
    document = yaml.safe_load(SMALLEST)
    document["metadata"]["name"] = name

    (problem,) = problems_of(yaml.safe_dump(document))

    assert problem.startswith("metadata.name: ")
    assert "DNS label" in problem


def test_a_date_that_was_meant_as_a_name_is_recognized() -> None:
    problem = problems_of(SMALLEST.replace("tiny}", "2024-01-01}"))

    assert problem == ["metadata.name: 2024-01-01 is a date, expected text; put it in quotes"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the manifest is empty; see docs/reference/manifest.md for the smallest one"),
        ("- 1", "the manifest is a list; it must be a mapping with kind: InferenceService"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
        ("a: 1\na: 2", "line 2, column 1: the field 'a' is given twice; keep one"),
        ("a: [1", "line 1, column 6: while parsing a flow sequence expected ',' or ']'"),
        (
            SMALLEST.replace("v1alpha1", "v1"),
            "apiVersion: 'serving.tandem.dev/v1' is not supported; "
            "allowed: serving.tandem.dev/v1alpha1",
        ),
        (
            SMALLEST.replace("kind: InferenceService", "kind: Deployment"),
            "kind: 'Deployment' is not supported; allowed: InferenceService",
        ),
        ("kind: a\n---\nkind: b", "none of the 2 documents is of kind InferenceService; add one"),
        (
            f"{SMALLEST}---{SMALLEST}",
            "2 documents are of kind InferenceService; put each into a file of its own",
        ),
    ],
)
def test_what_is_no_manifest_is_refused_in_words(text: str, problem: str) -> None:
    assert problems_of(text)[0].startswith(problem)


def test_the_service_is_found_among_other_documents() -> None:
    text = f"kind: ConfigMap\n---{SMALLEST}---\n"

    assert parse_manifest(text, folder=FOLDER).name == "tiny"


def test_a_file_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")

    for path, words in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a folder"),
        (binary, "is not UTF-8"),
    ):
        with pytest.raises(ManifestError, match=words):
            load_manifest(path)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2Gi", 2**31), ("512Mi", 2**29), ("1.5Gi", 3 * 2**29), ("1G", 10**9), ("100", 100)],
)
def test_a_quantity_is_a_number_of_bytes(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "-1Gi", "1 Gi", "0", "0.1", "1e3", "2gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"memory"):
        parse_memory(text)
