"""Reads one replica's own metrics each period, and compares Prometheus with them."""

import time
from collections.abc import Callable, Mapping, Sequence

from tandem_operator.autoscaler.agreement import Doubt, compare, next_pod
from tandem_operator.autoscaler.exposition import Reading, read_exposition
from tandem_operator.autoscaler.memory import Memory
from tandem_operator.autoscaler.replicas import ReplicaPod, read_replica
from tandem_operator.autoscaler.signals import Signals


class CrossCheck:
    """Compares Prometheus with the replicas of a service, one each period in turn.

    A replica that cannot be read proves nothing: its result is counted, and the replicas of its
    service are read less often until one can be read again.
    """

    def __init__(self, address: str, count: Callable[[str], None]) -> None:
        """`count` takes each result: `agrees`, `disagreeing`, `stale` or `unreadable`."""
        self._address = address
        self._count = count

    async def check(
        self, signals: Signals, pods: Sequence[ReplicaPod], memory: Memory
    ) -> Mapping[str, Doubt]:
        """Return the replicas that differ from `signals`, which were asked for before, by pod.

        They are those whose own last reading did. Where at least half of the readings did,
        Prometheus itself is in doubt: then it is all replicas.
        """
        await self._check_next(signals, pods, memory)
        doubts = {uid: doubt for uid, doubt in memory.doubts.items() if doubt is not None}
        if 2 * len(doubts) < len(memory.doubts):
            return {pod.name: doubts[pod.uid] for pod in pods if pod.uid in doubts}
        first = next(iter(doubts.values()), None)
        return {} if first is None else dict.fromkeys([pod.name for pod in pods], first)

    async def _check_next(
        self, signals: Signals, pods: Sequence[ReplicaPod], memory: Memory
    ) -> None:
        if memory.left_out:
            memory.left_out -= 1
            return
        by_name = {pod.name: pod for pod in pods if pod.ip and pod.ready_at is not None}
        name = next_pod([pod for pod in by_name if pod in signals.pods], memory.last_read)
        if name is None:
            return
        memory.last_read = name
        pod = by_name[name]
        before, after = memory.readings.get(pod.uid), await self._read(pod)
        memory.note_reading(pod, after)
        if after is None:
            memory.doubts.pop(pod.uid, None)
            self._count("unreadable")
            return
        doubt = compare(name, signals.pods[name], before, after)
        memory.doubts[pod.uid] = doubt
        self._count(doubt.problem.value.lower() if doubt else "agrees")

    async def _read(self, pod: ReplicaPod) -> Reading | None:
        read_at = time.time()
        body = await read_replica(self._address, pod)
        return None if body is None else read_exposition(body, read_at)
