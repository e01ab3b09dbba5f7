"""Conditions under which a lease may be acquired."""

from typing import Any

from tandem_operator.k8s.leader_election import DURATION_S, RENEW_S, RENEW_WITHIN_S, observe_lease


def lease(holder: str | None, renewed: str = "2026-11-21T14:00:00.000000Z") -> dict[str, Any]:
    return {"spec": {"holderIdentity": holder, "renewTime": renewed}}


def test_a_free_lease_may_be_taken() -> None:
    for free in ({}, lease(None), lease("")):
        assert observe_lease(free, None, 0.0).may_be_acquired("me", 0.0)


def test_ones_own_lease_may_be_taken() -> None:
    assert observe_lease(lease("me"), None, 0.0).may_be_acquired("me", 0.0)


def test_anothers_lease_may_not_be_taken_at_once_however_old_its_time() -> None:
    assert not observe_lease(lease("other", "1999-01-01T00:00:00Z"), None, 0.0).may_be_acquired(
        "me", 0.0
    )


def test_a_lease_that_has_not_changed_for_its_duration_may_be_taken() -> None:
    first = observe_lease(lease("other"), None, 100.0)
    later = observe_lease(lease("other"), first, 110.0)

    assert not later.may_be_acquired("me", 100.0 + DURATION_S)
    assert later.may_be_acquired("me", 100.1 + DURATION_S)


def test_a_renewal_begins_it_again() -> None:
    first = observe_lease(lease("other"), None, 100.0)
    renewed = observe_lease(lease("other", "2026-11-21T14:00:05.000000Z"), first, 105.0)

    assert not renewed.may_be_acquired("me", 105.0 + DURATION_S)


def test_a_leader_gives_up_before_another_process_may_follow() -> None:
    assert RENEW_S < RENEW_WITHIN_S < DURATION_S
