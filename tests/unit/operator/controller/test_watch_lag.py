"""Seconds that a watch is behind a LIST."""

from typing import Any

import pytest

from tandem_operator.controller.watch_lag import WatchLag


def item(uid: str, version: int) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


@pytest.fixture
def lag() -> WatchLag:
    lag = WatchLag()
    lag.deliver(item("a", 7), is_gone=False)
    return lag


def test_a_quiet_cluster_has_no_lag(lag: WatchLag) -> None:
    for now in (0.0, 1000.0, 2000.0):
        lag.compare([item("a", 7)], now)

    assert lag.behind_s(9999.0) == 0.0


def test_a_change_that_only_the_list_has_counts(lag: WatchLag) -> None:
    lag.compare([item("a", 12)], 100.0)

    assert lag.behind_s(130.0) == 30.0


def test_the_lag_counts_from_the_first_list_that_had_it(lag: WatchLag) -> None:
    lag.compare([item("a", 12)], 100.0)
    lag.compare([item("a", 15)], 160.0)

    assert lag.behind_s(170.0) == 70.0


def test_a_late_delivery_ends_the_lag(lag: WatchLag) -> None:
    lag.compare([item("a", 12)], 100.0)
    lag.deliver(item("a", 12), is_gone=False)

    assert lag.behind_s(999.0) == 0.0


def test_an_older_delivery_does_not(lag: WatchLag) -> None:
    lag.compare([item("a", 12)], 100.0)
    lag.deliver(item("a", 9), is_gone=False)

    assert lag.behind_s(110.0) == 10.0


def test_a_watch_may_be_ahead_of_the_list(lag: WatchLag) -> None:
    lag.deliver(item("a", 100), is_gone=False)
    lag.compare([item("a", 99)], 100.0)

    assert lag.behind_s(200.0) == 0.0


def test_a_new_object_counts_too(lag: WatchLag) -> None:
    lag.compare([item("a", 7), item("b", 3)], 100.0)

    assert lag.behind_s(101.0) == 1.0


@pytest.mark.parametrize("by_watch", [True, False])
def test_a_deleted_object_counts_no_longer(lag: WatchLag, by_watch: bool) -> None:
    lag.compare([item("a", 12)], 100.0)
    if by_watch:
        lag.deliver(item("a", 13), is_gone=True)
    else:
        lag.compare([], 160.0)

    assert lag.behind_s(999.0) == 0.0


def test_a_new_watch_has_no_lag_yet(lag: WatchLag) -> None:
    lag.compare([item("a", 12)], 100.0)
    lag.reset()

    assert lag.behind_s(999.0) == 0.0
