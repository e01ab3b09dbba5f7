"""The CEL rules cover every check of the pydantic spec; both refuse the same manifests."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tandem_engine.api.model import Model
from tandem_operator.crd.cel import Rule
from tandem_operator.crd.manifest import object_schema
from tandem_operator.crd.parse import parse_object
from tandem_operator.crd.rules import RULES
from tandem_operator.crd.schema import node_at
from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.problems import part_of
from tandem_serve.api.spec import InferenceServiceSpec
from tests.unit.operator.crd.bad_speculation import SOURCE
from tests.unit.operator.crd.forms import manifest
from tests.unit.operator.crd.manifests import BAD
from tests.unit.operator.crd.rule_texts import name_of, rules_in

PATHS = {rule.at for rule in RULES}
STANDS_FOR = {rule.stands_for for rule in RULES} - {""}


def fields(
    model: type[BaseModel], path: str = "spec"
) -> Iterator[tuple[type[BaseModel], str, str, FieldInfo]]:
    """Every field below `model`: whose it is, its name there, its path, and itself."""
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias}"
        yield model, name, here, field
        if part := part_of(field):
            yield from fields(part, here + elements(field))


def elements(field: FieldInfo) -> str:
    return "[]" if "list" in str(field.annotation) else ""


def checks_of_one_field() -> Iterator[str]:
    """Path of each field, or of its elements, that a function checks."""
    for model, name, path, field in fields(InferenceServiceSpec):
        checks = model.__pydantic_decorators__.field_validators.values()
        if name in {one for check in checks for one in check.info.fields}:
            yield path
        elif "AfterValidator" in f"{field.annotation} {field.metadata}":
            yield path + elements(field)


def checks_of_several_fields() -> Iterator[str]:
    for model in {model for model, *_ in fields(InferenceServiceSpec)}:
        own = model.__pydantic_decorators__.model_validators.keys()
        inherited = Model.__pydantic_decorators__.model_validators.keys()
        yield from (f"{model.__name__}.{name}" for name in own - inherited)


@pytest.mark.parametrize("path", sorted(set(checks_of_one_field())))
def test_a_field_that_python_checks_has_a_rule(path: str) -> None:
    assert path in PATHS


def test_every_check_of_several_fields_has_a_rule() -> None:
    assert set(checks_of_several_fields()) == STANDS_FOR


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.at}{rule.field}: {rule.rule}"[:70])
def test_a_rule_stands_at_a_field_and_says_what_to_do(rule: Rule) -> None:
    node = node_at(object_schema(), rule.at)

    assert node_at(node, rule.field.lstrip("."))
    assert rule.document() in node["x-kubernetes-validations"]
    assert rule.text.count("%") == len(rule.values)
    assert "; " in rule.text
    assert "\n" not in rule.rule + rule.text


# Without Kubernetes this one has other words, which name other ways out.
LOCAL = {
    f"{field}: '%s' is not a source that Kubernetes can mount"
    for field in ("spec.model.source", SOURCE)
}
NAMES = sorted({name_of(rule) for rule in RULES})


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_bad_manifests_has_one_for_every_rule(name: str) -> None:
    path, _, _ = name.partition(": ")
    here = [bad for bad in BAD if re.sub(r"\[\d+\]", "[]", bad.field) == path]

    assert here
    if name not in LOCAL:
        assert name in set().union(*(rules_in(problems(manifest(bad.changes))) for bad in here))


def problems(document: dict[str, Any]) -> str:
    """What the operator says about a manifest, a line for each problem."""
    try:
        parse_object(document)
    except ManifestError as error:
        return str(error)
    return ""
