"""The schema that the API server holds objects to: structural, described, with defaults."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given

from tandem_operator.crd.manifest import definition, object_schema
from tandem_operator.crd.parse import parse_object
from tandem_operator.crd.schema import Schema, model_schema, node_at
from tandem_operator.crd.unfilled import NOT_FILLED
from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.problems import part_of
from tandem_serve.api.spec import InferenceService
from tests.unit.operator.crd.forms import manifest
from tests.unit.operator.crd.manifests import GOOD
from tests.unit.operator.crd.random_manifests import documents

SCHEMA = object_schema()


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every node of a schema with its path."""
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from nodes(part, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def fill(schema: Schema, value: Any) -> Any:
    """`value` with the defaults that the API server writes into it."""
    if isinstance(value, list):
        return [fill(schema["items"], one) for one in value]
    if not isinstance(value, dict):
        return value
    filled = deepcopy(value)
    for name, part in schema.get("properties", {}).items():
        if "default" in part:
            filled.setdefault(name, deepcopy(part["default"]))
        if name in filled:
            filled[name] = fill(part, filled[name])
    return filled


def test_every_field_is_described() -> None:
    fields = [
        (path, node)
        for path, node in nodes(SCHEMA)
        if not path.startswith("metadata") and not path.endswith(("[]", "{}"))
    ]

    assert len(fields) > 60
    for path, node in fields:
        assert node["description"].endswith("."), path


def test_the_schema_is_structural() -> None:
    for path, node in nodes(SCHEMA):
        assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}, path
        assert not {"$ref", "anyOf", "oneOf", "allOf", "not", "nullable"} & node.keys(), path


def test_everything_in_the_spec_has_an_end() -> None:
    for path, node in nodes(node_at(SCHEMA, "spec")):
        match node:
            case {"type": "string"}:
                assert {"maxLength", "enum"} & node.keys(), path
            case {"type": "array"}:
                assert "maxItems" in node, path
            case {"type": "integer"}:
                assert {"maximum", "enum"} & node.keys(), path
            case {"type": "number"}:
                assert {"minimum", "maximum"} <= node.keys(), path
            case {"additionalProperties": _}:
                assert "maxProperties" in node, path


def test_a_type_that_a_schema_cannot_hold_is_refused() -> None:
    class Strange(InferenceService):
        either: int | str
        """One of two types."""

    with pytest.raises(TypeError, match=r"int \| str cannot be in a structural schema"):
        model_schema(Strange)


def test_a_share_is_a_number_with_its_default() -> None:
    ratio = node_at(SCHEMA, "spec.observability.tracing.sampleRatio")

    assert (ratio["type"], ratio["minimum"], ratio["maximum"]) == ("number", 0, 1)
    assert ratio["default"] == 1


def test_a_choice_of_numbers_is_a_number() -> None:
    policy = node_at(SCHEMA, "spec.engine.schedule.splitFuse.policyType")

    assert (policy["type"], policy["enum"], policy["default"]) == ("integer", [0, 4, 5, 6, 7], 0)


def test_an_outer_default_holds_the_inner_ones_that_rules_read() -> None:
    default = node_at(SCHEMA, "spec.engine.schedule")["default"]

    assert default["maxPreemptCount"] == 0
    assert default["splitFuse"]["policyType"] == 0


def test_an_absent_batch_size_is_left_to_the_replica() -> None:
    node = node_at(SCHEMA, "spec.engine.schedule.maxBatchSize")

    assert "default" not in node
    assert "Default: 200, or fewer where the memory holds no more." in node["description"]
    assert "maxBatchSize" not in node_at(SCHEMA, "spec.engine.schedule")["default"]


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD)
def test_defaults_filled_in_change_nothing(changes: dict[str, Any]) -> None:
    document = manifest(changes)

    assert parse_object(fill(SCHEMA, document)).resolved() == parse_object(document).resolved()


@given(documents())
def test_an_object_is_judged_alike_with_and_without_its_defaults(document: dict[str, Any]) -> None:
    assert is_good(fill(SCHEMA, document)) == is_good(document)


def is_good(document: dict[str, Any]) -> bool:
    try:
        parse_object(document)
    except ManifestError:
        return False
    return True


@pytest.mark.parametrize(
    ("path", "beside"),
    {
        "spec.engine.schedule.templateType": {"spec.slo.tpot.target": "50ms"},
        "spec.engine.schedule.maxPrefillBatchSize": {"spec.engine.schedule.maxBatchSize": 8},
        "spec.engine.schedule.maxPrefillTokens": {"spec.model.maxInputTokenLen": 9000},
        "spec.engine.schedule.maxIterTimes": {"spec.model.maxSeqLen": 128},
        "spec.engine.schedule.splitFuse.splitStartBatchSize": {
            "spec.engine.schedule.maxBatchSize": 8
        },
        "spec.engine.schedule.splitFuse.maxLongPartialPrefills": {
            "spec.engine.schedule.splitFuse.maxNumPartialPrefills": 4
        },
    }.items(),
)
def test_a_default_stays_out_where_it_would_count_as_written(
    path: str, beside: dict[str, Any]
) -> None:
    default = default_of(path)

    assert path in NOT_FILLED
    assert "default" not in node_at(SCHEMA, path)
    assert f"Default: {default}" in node_at(SCHEMA, path)["description"]
    assert is_good(manifest(beside))
    assert not is_good(manifest(beside | {path: default}))


def test_every_other_default_of_the_spec_is_filled_in() -> None:
    for path, node in nodes(node_at(SCHEMA, "spec"), "spec"):
        default = None if path == "spec" or "[]" in path or "{}" in path else default_of(path)
        if isinstance(default, bool | int | str) and path not in NOT_FILLED:
            assert node["default"] == default


def default_of(path: str) -> Any:
    """pydantic's default of the field at `path`."""
    model: Any = InferenceService
    field = None
    for name in path.split("."):
        field = next(field for field in model.model_fields.values() if field.alias == name)
        model = part_of(field)
    assert field is not None
    return field.default


def test_scale_and_columns_stand_on_fields_that_exist() -> None:
    version = definition()["spec"]["versions"][0]
    paths = [*version["subresources"]["scale"].values()]
    paths += [column["jsonPath"] for column in version["additionalPrinterColumns"]]

    for path in paths:
        if "?" not in path and not path.startswith(".metadata"):
            assert node_at(SCHEMA, path.lstrip("."))
