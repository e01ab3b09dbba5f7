"""A budget of NPUs over services with priorities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.autoscale.budget import Demand, GrantReason, share


def demand(
    name: str, *, priority: int = 0, npus: int = 1, low: int = 1, current: int = 1, desired: int = 1
) -> Demand:
    return Demand(
        name=name,
        priority=priority,
        npus_per_replica=npus,
        min_replicas=low,
        current=current,
        desired=desired,
    )


def granted(budget: int, *demands: Demand) -> list[int]:
    shares = share(budget, demands)
    return [shares.grants[one.name].replicas for one in demands]


def test_a_budget_that_is_enough_satisfies_all() -> None:
    shares = share(16, [demand("chat", npus=4, desired=3), demand("batch", desired=4)])

    assert {one.reason for one in shares.grants.values()} == {GrantReason.SATISFIED}
    assert shares.left == 0


@pytest.mark.parametrize(
    ("budget", "expected"), [(2, [1, 1]), (4, [3, 1]), (8, [6, 2]), (10, [6, 4]), (99, [6, 5])]
)
def test_the_higher_priority_grows_first(budget: int, expected: list[int]) -> None:
    chat = demand("chat", priority=100, desired=6)
    batch = demand("batch", priority=10, desired=5)

    assert granted(budget, chat, batch) == expected


def test_the_lower_priority_yields_and_is_told_why() -> None:
    chat = demand("chat", priority=100, npus=8, current=2, desired=5)
    batch = demand("batch", priority=10, npus=8, current=5, desired=5)
    grant = share(56, [batch, chat]).grants["batch"]

    assert (grant.replicas, grant.reason) == (2, GrantReason.RECLAIMED)
    assert grant.message == (
        "yields 3 of 5 replicas: 0 of 56 NPUs are left, a replica takes 8, its priority is 10; "
        "before it: 'chat' (priority 100)"
    )


def test_a_service_that_may_not_grow_is_told_why() -> None:
    grant = share(20, [demand("chat", npus=8, current=2, desired=4)]).grants["chat"]

    assert (grant.replicas, grant.reason) == (2, GrantReason.EXHAUSTED)
    assert grant.message == (
        "has 2 of the 4 replicas that it asks for: 4 of 20 NPUs are left, a replica takes 8, its "
        "priority is 0"
    )


def test_equals_take_nothing_from_each_other() -> None:
    first = demand("first", current=6, desired=6)
    second = demand("second", current=2, desired=6)

    assert granted(8, first, second) == [6, 2]


def test_equals_share_growth_evenly() -> None:
    demands = [demand(name, current=1, desired=8) for name in ("a", "b", "c")]

    assert granted(12, *demands) == [4, 4, 4]


def test_a_smaller_budget_shrinks_equals_evenly() -> None:
    demands = [demand(name, current=6, desired=6) for name in ("a", "b")]

    assert granted(6, *demands) == [3, 3]


def test_minimums_are_granted_even_beyond_the_budget() -> None:
    shares = share(6, [demand("a", npus=4, low=2, desired=2), demand("b", npus=2, desired=3)])

    assert [grant.replicas for grant in shares.grants.values()] == [2, 1]
    assert shares.left == -4


def test_services_without_npus_are_not_limited() -> None:
    assert granted(0, demand("cpu", npus=0, desired=9)) == [9]
    assert granted(2, demand("npu", low=4), demand("cpu", npus=0, desired=9)) == [4, 9]


def test_what_a_large_replica_leaves_goes_to_a_smaller_one() -> None:
    large = demand("large", priority=9, npus=8, desired=3)
    small = demand("small", npus=1, desired=9)

    assert granted(14, large, small) == [1, 6]
    assert granted(25, large, small) == [3, 1]


DEMANDS = st.lists(
    st.builds(
        demand,
        st.text("abcdefgh", min_size=1, max_size=4),
        priority=st.integers(0, 2),
        npus=st.sampled_from([0, 1, 2, 8]),
        low=st.integers(0, 3),
        current=st.integers(0, 9),
        desired=st.integers(0, 9),
    ),
    max_size=6,
    unique_by=lambda one: one.name,
)


@given(st.integers(0, 100), DEMANDS)
def test_grants_stay_within_the_budget_or_are_minimums(budget: int, demands: list[Demand]) -> None:
    shares = share(budget, demands)
    used = {one.name: shares.grants[one.name].replicas * one.npus_per_replica for one in demands}
    low = sum(one.min_replicas * one.npus_per_replica for one in demands)

    assert sum(used.values()) <= max(budget, low)
    assert shares.left == budget - sum(used.values())
    assert all(shares.grants[one.name].replicas >= one.min_replicas for one in demands)
    assert all(
        shares.grants[one.name].replicas <= max(one.min_replicas, one.desired) for one in demands
    )


@given(st.integers(0, 100), DEMANDS)
def test_no_service_waits_for_npus_that_are_free_or_of_a_lower_priority(
    budget: int, demands: list[Demand]
) -> None:
    shares = share(budget, demands)
    for one in demands:
        if shares.grants[one.name].replicas >= one.desired:
            continue
        below = sum(
            (shares.grants[other.name].replicas - other.min_replicas) * other.npus_per_replica
            for other in demands
            if other.priority < one.priority
        )
        assert shares.left + below < one.npus_per_replica


@given(st.integers(0, 100), DEMANDS)
def test_the_order_of_the_demands_does_not_matter(budget: int, demands: list[Demand]) -> None:
    assert share(budget, demands) == share(budget, demands[::-1])


@given(st.integers(0, 100), DEMANDS)
def test_sharing_again_with_the_grants_in_force_changes_nothing(
    budget: int, demands: list[Demand]
) -> None:
    first = {name: grant.replicas for name, grant in share(budget, demands).grants.items()}
    again = [
        demand(
            one.name,
            priority=one.priority,
            npus=one.npus_per_replica,
            low=one.min_replicas,
            current=first[one.name],
            desired=one.desired,
        )
        for one in demands
    ]

    assert {name: one.replicas for name, one in share(budget, again).grants.items()} == first
