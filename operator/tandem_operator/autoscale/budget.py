"""A budget of NPUs, shared by the services of a namespace by priority, with explanations; pure.

Each service has its minimum first: a budget never causes an outage. Then the higher priority grows
before the lower one, and takes from it what is above its minimum. Services of one priority take
nothing from each other: what they have they keep, and growth is shared evenly.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final


class GrantReason(StrEnum):
    """The reason of a grant."""

    SATISFIED = "Satisfied"
    EXHAUSTED = "BudgetExhausted"
    """It asks for more than is left."""
    RECLAIMED = "BudgetReclaimed"
    """It has more than is left, and yields the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one service asks for."""

    name: str
    priority: int = 0
    npus_per_replica: int
    min_replicas: int
    current: int
    """Replicas in force."""

    desired: int
    """Replicas that it would have with no budget."""

    def __post_init__(self) -> None:
        if self.npus_per_replica < 0:
            raise ValueError(
                f"service '{self.name}' has {self.npus_per_replica} NPUs a replica; write 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one service may have, and why."""

    replicas: int
    reason: GrantReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The grants of one namespace, by service."""

    grants: Mapping[str, Grant]
    left: int
    """NPUs that no service asks for; below 0: the minimums alone exceed the budget."""


_Counts = dict[str, int]

_MAX_NAMES: Final = 3


def share(budget: int, demands: Iterable[Demand]) -> Shares:
    """Share `budget` NPUs. A grant is the number that a service may grow to."""
    ranked = sorted(demands, key=lambda one: (-one.priority, one.name))
    granted = {one.name: one.min_replicas for one in ranked}
    left = budget - sum(one.min_replicas * one.npus_per_replica for one in ranked)
    for _, equals in groupby(ranked, key=lambda one: one.priority):
        peers = list(equals)
        kept = {one.name: min(one.current, one.desired) for one in peers}
        left = _raise(granted, left, peers, kept)
        left = _raise(granted, left, peers, {one.name: one.desired for one in peers})
    grants = {
        one.name: _explain(one, granted[one.name], _ahead_of(one, ranked, granted), budget, left)
        for one in ranked
    }
    return Shares(grants=grants, left=left)


def _raise(granted: _Counts, left: int, peers: Sequence[Demand], goals: _Counts) -> int:
    """Raise the grants of `peers` one replica at a time, the lowest share of its goal first.

    Returns:
        NPUs that are left.
    """
    by_name = {one.name: one for one in peers}
    queue = [(granted[name] / goal, name) for name, goal in goals.items() if goal]
    heapq.heapify(queue)
    while queue:
        _, name = heapq.heappop(queue)
        npus = by_name[name].npus_per_replica
        if granted[name] >= goals[name] or npus > max(left, 0):
            continue
        granted[name] += 1
        left -= npus
        heapq.heappush(queue, (granted[name] / goals[name], name))
    return left


def _ahead_of(one: Demand, ranked: Sequence[Demand], granted: _Counts) -> tuple[Demand, ...]:
    """Return the services of higher priority that have more than their minimum."""
    return tuple(
        other
        for other in ranked
        if other.priority > one.priority
        and other.npus_per_replica
        and granted[other.name] > other.min_replicas
    )


def _explain(one: Demand, replicas: int, ahead: Sequence[Demand], budget: int, left: int) -> Grant:
    if replicas >= one.desired:
        text = f"has the {one.desired} replicas that it asks for"
        return Grant(replicas=replicas, reason=GrantReason.SATISFIED, message=text)
    names = ", ".join(f"'{other.name}' (priority {other.priority})" for other in ahead[:_MAX_NAMES])
    more = f" and {len(ahead) - _MAX_NAMES} more" if len(ahead) > _MAX_NAMES else ""
    before = f"; before it: {names}{more}" if ahead else ""
    rest = (
        f"{max(left, 0)} of {budget} NPUs are left, a replica takes {one.npus_per_replica}, "
        f"its priority is {one.priority}{before}"
    )
    if replicas < one.current:
        text = f"yields {one.current - replicas} of {one.current} replicas: {rest}"
        return Grant(replicas=replicas, reason=GrantReason.RECLAIMED, message=text)
    text = f"has {replicas} of the {one.desired} replicas that it asks for: {rest}"
    return Grant(replicas=replicas, reason=GrantReason.EXHAUSTED, message=text)
