"""Sums of CPU and memory in the docs are those of the pods that are rendered."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tandem_serve.api.quantity import parse_cpu, parse_memory
from tests.unit.docs.pages import ROOT, prose
from tests.unit.operator.render.services import rendered

GUIDES: Final = ROOT / "docs" / "guides"
SUM: Final = re.compile(r"([\d.]+) CPU and ([\d.]+)Gi")
CASES: Final = [
    ("sizing.md", "A service with the defaults", {}),
    ("tutorial.md", "With Ray's head this service takes", {"cpu": 4, "memory": "8Gi"}),
]


def containers(resources: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the resources of all containers of a service with one replica."""
    spec = {"model": {"source": "file:///models/tiny"}, "resources": resources}
    [found] = [one for one in rendered(spec).objects if one["kind"] == "RayService"]
    cluster = found["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        yield from (container["resources"] for container in group["template"]["spec"]["containers"])
    yield cluster["autoscalerOptions"]["resources"]


@pytest.mark.parametrize(("page", "beginning", "resources"), CASES)
def test_the_sum_is_that_of_the_pods(page: str, beginning: str, resources: dict[str, Any]) -> None:
    [line] = [line for line in prose(GUIDES / page) if line.startswith(beginning)]
    *_, (cpu, memory) = SUM.findall(line)
    found = [container["requests"] for container in containers(resources)]

    assert float(cpu) == sum(parse_cpu(str(one["cpu"])) for one in found) / 1000
    assert float(memory) * 2**30 == sum(parse_memory(str(one["memory"])) for one in found)
