"""Objects of the API server, as the operator parses them."""

from typing import Any

import pytest

from tandem_operator.crd.parse import parse_object
from tandem_serve.api.manifest import ManifestError
from tests.unit.operator.crd.forms import Bad, manifest
from tests.unit.operator.crd.manifests import BAD, GOOD


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD)
def test_a_good_object_is_a_service(changes: dict[str, Any]) -> None:
    service = parse_object(manifest(changes))

    assert service.manifest() == manifest(changes)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.fault)
def test_what_the_crd_refuses_is_refused_here_in_words(bad: Bad) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_object(manifest(bad.changes))

    assert (bad.told or bad.words) in str(caught.value)


def test_what_kubernetes_adds_to_an_object_is_left_aside() -> None:
    document = manifest({"metadata.namespace": "team", "metadata.labels": {"a": "b"}})
    stored = document | {
        "metadata": document["metadata"]
        | {"uid": "1", "generation": 2, "managedFields": [{}], "finalizers": ["x"]},
        "status": {"url": "http://tiny.team.svc:8000"},
    }

    assert parse_object(stored) == parse_object(document)


def test_every_problem_has_its_line() -> None:
    document = manifest(
        {
            "spec.model.source": "./tiny",
            "spec.runtime.env": [{"name": "A"}, {"name": "A"}],
            "metadata.name": "a" * 50,
        }
    )
    with pytest.raises(ManifestError) as caught:
        parse_object(document)

    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "metadata.name",
        "spec.model.source",
        "spec.runtime.env",
    ]


def test_an_unknown_field_of_an_older_crd_is_named() -> None:
    with pytest.raises(ManifestError, match=r"spec\.scaling\.target: unknown field"):
        parse_object(manifest({"spec.scaling.target": 2}))
