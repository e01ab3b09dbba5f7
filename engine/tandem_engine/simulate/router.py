"""The router's policy: HAProxy's leastconn, which Ray Serve configures for its replicas.

The request goes to the replica with the fewest connections; among equals they take turns. Flows of
requests fill the replicas up to a common level.
"""

from collections.abc import Sequence

from tandem_engine.simulate.replica import Replica


class LeastConnections:
    """Chooses replicas."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, replicas: Sequence[Replica]) -> Replica:
        """Return the replica for the next request."""
        fewest = min(replica.num_ongoing for replica in replicas)
        equal = [replica for replica in replicas if replica.num_ongoing == fewest]
        self._turn += 1
        return equal[self._turn % len(equal)]

    def share(self, replicas: Sequence[Replica], count: float) -> list[tuple[Replica, float]]:
        """Return the part of `count` requests that goes to each replica which gets any."""
        ordered = sorted(replicas, key=lambda replica: replica.num_ongoing)
        level, size, left = ordered[0].num_ongoing, 0, count
        filled: list[Replica] = []
        for replica in ordered:
            rise = (replica.num_ongoing - level) * size
            if rise >= left > 0.0 and size:
                break
            left -= rise
            level, size = replica.num_ongoing, size + replica.size
            filled.append(replica)
        level += left / size
        return [(each, (level - each.num_ongoing) * each.size) for each in filled]
