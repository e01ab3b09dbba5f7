"""A change asks for the areas whose code it touches."""

import pytest

from tools.suite.areas import AREAS
from tools.suite.changed import areas_of_change


@pytest.mark.parametrize(
    ("path", "areas"),
    [
        ("docs/faq.md", {"docs"}),
        ("crds/serving.tandem.dev_inferenceservices.yaml", {"operator", "kubernetes"}),
        ("tests/integration/operator/test_crd.py", {"operator"}),
        ("tests/integration/hostile/attack.py", {"engine", "hostile"}),
        ("benchmarks/serving/cli.py", {"benchmarks"}),
        (".gitignore", set()),
    ],
)
def test_a_file_asks_for_its_areas(path: str, areas: set[str]) -> None:
    assert {area.name for area in areas_of_change([path])} == areas


def test_what_operator_tests_share_is_for_operator_and_faults() -> None:
    found = {area.name for area in areas_of_change(["tests/integration/operator/process.py"])}

    assert {"operator", "faults"} <= found
    assert "ranks" not in found


@pytest.mark.parametrize(
    "path", ["tests/conftest.py", "pyproject.toml", "constraints.txt", "tools/suite/run.py"]
)
def test_what_all_tests_share_asks_for_all(path: str) -> None:
    assert areas_of_change([path]) == list(AREAS)


def test_areas_come_once_and_in_their_order() -> None:
    found = areas_of_change(["charts/tandem/Chart.yaml", "docs/faq.md", "docs/README.md"])

    assert found == [area for area in AREAS if area in found]
