"""The budget of a namespace counts every service in it, also those that decide nothing."""

from tandem_operator.autoscale.budget import Demand
from tandem_operator.autoscaler.demands import Demands
from tandem_operator.k8s.objects import NamespacedName

A, B, ELSEWHERE = (
    NamespacedName("models", "a"), NamespacedName("models", "b"), NamespacedName("other", "b")
)  # fmt: skip


def demand(name: str, current: int, desired: int) -> Demand:
    return Demand(name=name, npus_per_replica=8, min_replicas=1, current=current, desired=desired)


def test_a_service_gets_what_the_others_leave() -> None:
    demands = Demands({"models": 32})
    assert demands.unknown([A, B]) == [A, B]
    demands.put(B, demand("b", 3, 3))
    assert demands.unknown([A, B]) == [A]

    assert demands.grant(A, demand("a", 1, 4)).replicas == 1
    demands.forget(B)
    assert demands.grant(A, demand("a", 1, 4)).replicas == 4


def test_other_namespaces_do_not_count() -> None:
    demands = Demands({"models": 32, "other": 8})
    demands.put(ELSEWHERE, demand("b", 1, 1))

    assert demands.grant(A, demand("a", 1, 4)).replicas == 4
    assert not demands.has_budget("third")
