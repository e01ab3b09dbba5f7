"""Replicas in the same state as flows of requests, by a curve measured on the real scheduler.

It costs as much for a thousand replicas as for one, and nothing by the step. What it keeps of a
replica is the number of requests in process, which decides the latencies of new ones, and the
queue of those that are late already:

- with n requests in process, prompts are computed at a rate that falls from that of an idle replica
  (`burst_rate`) to that of an overloaded one (`overload_rate`), in proportion to n;
- requests beyond it become late ones. They are served in the order of arrival, by what the
  scheduler leaves over: it prefers requests that can still be in time (`overload_share`);
- a request stays for its TTFT and its further tokens, at latencies drawn from the curve at n.

A request that is not a mean one counts by its work, and the time of a longer prompt is added to
its TTFT. There is no preemption and no limit of the KV cache: neither was ever near in the
measurements that the curve is for.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, merge
from typing import Final, NamedTuple, TypeVar

from tandem_engine.simulate.performance_curve import (
    SHARES,
    Latencies,
    LoadPoint,
    PerformanceCurve,
    prompt_s,
    stay_s,
)
from tandem_engine.simulate.replica import (
    Completion,
    FirstToken,
    Progress,
    Replica,
    ReplicaState,
)
from tandem_engine.simulate.workload import Arrival, Shape

_SAME: Final = 0.2
"""Difference of ongoing requests, as a share, below which replicas become one flow.

The router levels them anyway; what remains is that a new one has no old requests that end.
"""
_LEVELS: Final = 4.0
"""Levels of load a request in process, for which points of the curve are kept."""
_NONE: Final = 1e-9


class _Running(NamedTuple):
    """Requests in process that came together."""

    ends_s: float
    arrived_s: float
    shape: Shape
    num_requests: float
    latencies: Latencies


class _Queued(NamedTuple):
    arrived_s: float
    shape: Shape
    num_requests: float


@dataclass(slots=True)
class Flows:
    """The requests of some replicas, of all of them together."""

    running: list[_Running] = field(default_factory=list)
    """A heap: who ends first stands first."""
    num_running: float = 0.0
    queue: deque[_Queued] = field(default_factory=deque)
    """Late ones, by arrival."""
    num_queued: float = 0.0
    new: list[_Queued] = field(default_factory=list)
    """Those that came since the last step."""

    @property
    def count(self) -> float:
        """All of them."""
        return self.num_running + self.num_queued + sum(each.num_requests for each in self.new)

    def scaled(self, part: float) -> "Flows":
        """Return a part of each flow."""
        return Flows(
            running=_scaled(self.running, part),
            num_running=self.num_running * part,
            queue=deque(_scaled(self.queue, part)),
            num_queued=self.num_queued * part,
            new=_scaled(self.new, part),
        )

    def joined(self, other: "Flows") -> "Flows":
        """Return both."""
        running = self.running + other.running
        heapify(running)
        return Flows(
            running=running,
            num_running=self.num_running + other.num_running,
            queue=deque(merge(self.queue, other.queue, key=_arrived_s)),
            num_queued=self.num_queued + other.num_queued,
            new=self.new + other.new,
        )


class FluidReplicas:
    """`size` replicas in the same state.

    Args:
        curve: The performance of one.
        size: Replicas.
        now: When they begin, in seconds.
    """

    def __init__(self, curve: PerformanceCurve, size: int, now: float = 0.0) -> None:
        self.size = size
        self._curve = curve
        self._now = now
        self.flows = Flows()
        """Their requests."""
        self.busy_s = 0.0
        """Seconds that each computed."""
        self._points: dict[int, LoadPoint] = {}

    @property
    def num_ongoing(self) -> float:
        """Requests in process or waiting, of each replica."""
        return self.flows.count / self.size

    def submit(self, arrival: Arrival, count: float = 1.0) -> None:
        """Take `count` requests, of all replicas together."""
        self.flows.new.append(_Queued(arrival.due_s, arrival.shape, count))

    def advance(self, now: float) -> Progress:
        """Let time pass up to `now`, as one step."""
        seconds = now - self._now
        if seconds <= 0.0:
            return Progress((), ())
        self._now = now
        self.busy_s += seconds * min(1.0, self.num_ongoing)
        first_tokens = self._start(now, seconds)
        return Progress(first_tokens, self._complete(now))

    def state(self) -> ReplicaState:
        """Return the state of each replica."""
        running = self.flows.num_running / self.size
        return ReplicaState(
            num_running=running,
            num_waiting=self.flows.num_queued / self.size,
            queue_age_s=self._now - self.flows.queue[0].arrived_s if self.flows.queue else 0.0,
            kv_usage=self._point().kv_usage if running > _NONE else 0.0,
            busy_s=self.busy_s,
        )

    def split(self, size: int) -> "FluidReplicas":
        """Make `size` of these replicas, fewer than all, an object of their own.

        Raises:
            ValueError: there are not more than `size`.
        """
        if not 0 < size < self.size:
            raise ValueError(f"size is {size}; it must be from 1 to {self.size - 1}")
        part = size / self.size
        other = FluidReplicas(self._curve, size, self._now)
        other.flows, self.flows = self.flows.scaled(part), self.flows.scaled(1.0 - part)
        other.busy_s = self.busy_s
        self.size -= size
        return other

    def absorb(self, other: Replica) -> bool:
        """Take over `other` if about as many requests are ongoing in each of its replicas."""
        if not isinstance(other, FluidReplicas):
            return False
        mine, theirs = self.num_ongoing, other.num_ongoing
        if abs(mine - theirs) > _SAME * max(mine, theirs, 1.0):
            return False
        self.flows = self.flows.joined(other.flows)
        size = self.size + other.size
        self.busy_s = (self.busy_s * self.size + other.busy_s * other.size) / size
        self.size = size
        return True

    def _start(self, now: float, seconds: float) -> list[FirstToken]:
        """Begin requests, as far as there is capacity; return their first tokens."""
        running = self.flows.num_running / self.size
        most = self._curve.points[-1].num_ongoing
        low, high = self._curve.overload_rate, self._curve.burst_rate
        rate = high - (high - low) * min(1.0, running / most)
        capacity = rate * seconds * self.size
        first_tokens: list[FirstToken] = []
        new, self.flows.new = self.flows.new, []
        # The scheduler prefers requests that can still be in time, and not without limit.
        preferred = capacity * self._curve.overload_share if self.flows.queue else capacity
        left = preferred
        for each in new:
            begun, left = self._begin(each, left, now, 0.0, first_tokens)
            if each.num_requests - begun > _NONE:
                self.flows.queue.append(each._replace(num_requests=each.num_requests - begun))
                self.flows.num_queued += each.num_requests - begun
        left += capacity - preferred
        while self.flows.queue and left > _NONE:
            oldest = self.flows.queue.popleft()
            waited = now - oldest.arrived_s
            begun, left = self._begin(oldest, left, now, waited, first_tokens)
            self.flows.num_queued -= begun
            if oldest.num_requests - begun > _NONE:
                self.flows.queue.appendleft(
                    oldest._replace(num_requests=oldest.num_requests - begun)
                )
        if not self.flows.queue:
            self.flows.num_queued = 0.0
        return first_tokens

    def _begin(
        self,
        queued: _Queued,
        capacity: float,
        now: float,
        waited_s: float,
        first_tokens: list[FirstToken],
    ) -> tuple[float, float]:
        """Begin what fits of `queued`; return the number of requests, and the capacity left."""
        work = self._curve.work(queued.shape)
        count = min(queued.num_requests, capacity / work)
        if count <= _NONE:
            return 0.0, capacity
        latencies = self._point().latencies
        late_s = waited_s + self._longer_s(queued.shape)
        latencies = [(max(_NONE, ttft_s + late_s), tpot_s) for ttft_s, tpot_s in latencies]
        arrived = queued.arrived_s
        ended = _Running(
            arrived + stay_s(latencies, queued.shape), arrived, queued.shape, count, latencies
        )
        heappush(self.flows.running, ended)
        self.flows.num_running += count
        first_tokens += [
            FirstToken(now, ttft_s, count * share)
            for share, (ttft_s, _) in zip(SHARES, latencies, strict=True)
        ]
        return count, capacity - count * work

    def _longer_s(self, shape: Shape) -> float:
        """Return by how much a prompt takes longer than the mean one."""
        curve = self._curve
        mean = prompt_s(curve.machine, curve.mean_shape.num_input)
        slowdown = curve.burst_rate / curve.overload_rate
        return (prompt_s(curve.machine, shape.num_input) - mean) * slowdown

    def _complete(self, now: float) -> list[Completion]:
        completions: list[Completion] = []
        while self.flows.running and self.flows.running[0].ends_s <= now:
            ended = heappop(self.flows.running)
            self.flows.num_running -= ended.num_requests
            completions += _completions(ended)
        if not self.flows.running:
            self.flows.num_running = 0.0
        return completions

    def _point(self) -> LoadPoint:
        level = round(self.flows.num_running / self.size * _LEVELS)
        point = self._points.get(level)
        if point is None:
            point = self._points[level] = self._curve.at(level / _LEVELS)
        return point


def _completions(ended: _Running) -> list[Completion]:
    arrived = ended.arrived_s
    return [
        Completion(
            ended.ends_s,
            arrived,
            arrived + ttft_s,
            tpot_s if ended.shape.num_output > 1 else None,
            ended.shape,
            ended.num_requests * share,
        )
        for share, (ttft_s, tpot_s) in zip(SHARES, ended.latencies, strict=True)
    ]


_Flow = TypeVar("_Flow", _Running, _Queued)


def _arrived_s(queued: _Queued) -> float:
    return queued.arrived_s


def _scaled(flows: Iterable[_Flow], part: float) -> list[_Flow]:
    return [each._replace(num_requests=each.num_requests * part) for each in flows]
