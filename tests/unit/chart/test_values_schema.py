"""The schema of the chart's values against the values and the operator's settings."""

import json
from pathlib import Path
from typing import Any

import yaml

from tandem_operator.render.settings import OperatorSettings
from tools.values_schema import SCHEMA, with_settings

CHART = SCHEMA.parent


def test_settings_are_those_of_the_operator() -> None:
    text = SCHEMA.read_text()

    assert text == with_settings(text), "run: python -m tools.values_schema"


def test_every_value_has_a_line_in_the_schema_and_the_other_way_round() -> None:
    schema = json.loads(SCHEMA.read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert values.keys() == schema["properties"].keys() - {"global"}


def test_every_group_of_the_schema_refuses_what_it_does_not_know() -> None:
    schema = json.loads(SCHEMA.read_text())
    open_groups = [name for name, part in groups("", schema) if "additionalProperties" not in part]

    assert open_groups == []


def groups(name: str, schema: Any) -> list[tuple[str, dict[str, Any]]]:
    """(path, part) of every part with named properties."""
    if not isinstance(schema, dict):
        return []
    found = [(name, schema)] if "properties" in schema and "type" in schema else []
    return found + [each for key, part in schema.items() for each in groups(f"{name}/{key}", part)]


def test_every_value_of_the_chart_is_explained() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    top = [number for number, line in enumerate(lines) if line[:1].isalpha()]

    unexplained = [lines[number] for number in top if not explained(lines, number)]
    assert unexplained == []


def explained(lines: list[str], number: int) -> bool:
    """Return True when a comment is above the value, above its neighbours, or inside its group."""
    while lines[number - 1] and not lines[number - 1].startswith("#"):
        number -= 1
    return lines[number - 1].startswith("#") or lines[number + 1].startswith("  #")


def test_the_chart_and_the_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()

    assert chart["version"] == chart["appVersion"]
    assert f'version = "{chart["version"]}"' in project


def test_settings_that_the_chart_leaves_empty_have_defaults_in_the_operator() -> None:
    made = OperatorSettings.model_validate({"replica": {"image": "x"}})
    peers = yaml.safe_load((CHART / "values.yaml").read_text())["networkPeers"]

    assert [peer.manifest() for peer in made.access.kuberay] == peers["kuberay"]
    assert [peer.manifest() for peer in made.access.prometheus] == peers["prometheus"]
