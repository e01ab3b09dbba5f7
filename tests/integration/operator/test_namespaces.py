"""One operator for some namespaces: what befalls one of them stays there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.conftest import StartOperator
from tests.integration.operator.process import (
    Namespace,
    OperatorProcess,
    children_of,
    manifest,
    settle,
    until,
)
from tests.integration.operator.rights import RULES, bind, grant

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def other(namespace: Namespace) -> Iterator[Namespace]:
    """A second namespace, in which the operator has its rights as well."""
    second = Namespace(namespace.cluster, f"{namespace.name}-other")
    make(second, namespace)
    yield second
    remove(second)


def make(second: Namespace, home: Namespace) -> None:
    second.kubectl("create", "namespace", second.name)
    bind(home, RULES, second)


def remove(second: Namespace) -> None:
    second.kubectl("delete", "namespace", second.name, "--ignore-not-found", "--wait")


@pytest.fixture
def operator(
    namespace: Namespace, other: Namespace, start_operator: StartOperator, tmp_path: Path
) -> OperatorProcess:
    """An operator that serves both, with rights in both and nowhere else."""
    kubeconfig = grant(namespace, RULES, tmp_path)
    started = start_operator(kubeconfig=kubeconfig, options=(f"--namespace={other.name}",))
    for each in (namespace, other):
        each.apply(manifest())
    for each in (namespace, other):
        settle(each, started.wait_until_leading())
    return started


def is_resynced(operator: OperatorProcess, namespace: Namespace) -> bool:
    return operator.samples("namespace_resynced").get((("namespace", namespace.name),)) == 1.0


def test_a_namespace_that_is_deleted_takes_nothing_else_with_it(
    namespace: Namespace, other: Namespace, operator: OperatorProcess
) -> None:
    remove(other)

    operator.wait_for_resyncs(2)
    assert operator.health()["ok"]
    until(lambda: operator.value("services") == 1, "its services are forgotten")
    assert not is_resynced(operator, other)
    assert is_resynced(operator, namespace)
    assert "403" in operator.health()["failures"][other.name]
    namespace.kubectl("delete", "rayservice", "tiny")
    namespace.apply(manifest("second"))
    settle(namespace, operator, "second")
    settle(namespace, operator)
    assert operator.health()["ok"]


def test_a_namespace_that_comes_back_is_served_again(
    namespace: Namespace, other: Namespace, operator: OperatorProcess
) -> None:
    remove(other)
    until(lambda: not is_resynced(operator, other), "it is missed")

    make(other, namespace)
    other.apply(manifest("back"))

    until(lambda: children_of("back") <= set(other.children("back")), "it is served")
    until(lambda: is_resynced(operator, other), "it is resynced")
    other.kubectl("delete", "rayservice", "back")
    until(lambda: other.get("rayservice", "back"), "and watched")


def test_an_object_of_a_thousand_levels_is_its_authors_trouble_alone(
    namespace: Namespace, other: Namespace, operator: OperatorProcess
) -> None:
    """Kubernetes takes ten thousand, and no parser of Python's does."""
    deep = '{"a":' * 3000 + "1" + "}" * 3000
    document = json.dumps(
        manifest("deep", runtime={"volumes": [{"name": "v", "emptyDir": "DEEP"}]})
    )
    text = document.replace('"DEEP"', deep)
    other.cluster.kubectl("create", f"--namespace={other.name}", "--filename=-", input=text)

    operator.wait_for_resyncs(2)
    namespace.apply(manifest("second"))
    settle(namespace, operator, "second")
    other.apply(manifest("beside"))

    until(lambda: children_of("beside") <= set(other.children("beside")), "it is served")
    assert is_resynced(operator, other)
    assert operator.health()["ok"]
    restarted = operator.log.read_text().count("this is a bug")
    assert not restarted, operator.log.read_text()
