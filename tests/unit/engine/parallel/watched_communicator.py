"""A communicator that notes what NCCL and HCCL cannot do: which threads call, which way is sent."""

import threading
from collections import defaultdict
from collections.abc import Callable

from torch import Tensor

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.silence import Silence
from tandem_engine.parallel.world import WORLD, WorldShape


class WatchedCommunicator:
    """Makes the calls of another one; implements `Communicator`."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._threads = defaultdict[str, set[int]](set)
        self._ways = defaultdict[str, set[tuple[int, int]]](set)
        self._busy = defaultdict[str, threading.Lock](threading.Lock)
        self._at_once: list[str] = []

    def faults(self, *, taking_turns: tuple[str, ...] = ()) -> list[str]:
        """Return what was wrong; in groups of `taking_turns`, several threads are not."""
        return [
            *self._at_once,
            *(
                f"{len(threads)} threads call group '{group}'"
                for group, threads in self._threads.items()
                if len(threads) > 1 and group not in taking_turns
            ),
            *(
                f"group '{group}' is sent in both ways"
                for group, ways in self._ways.items()
                if any((target, source) in ways for source, target in ways)
            ),
        ]

    @property
    def rank(self) -> int:
        return self._communicator.rank

    @property
    def shape(self) -> WorldShape:
        return self._communicator.shape

    def all_reduce(self, tensor: Tensor, group: str = WORLD) -> None:
        self._call(group, lambda: self._communicator.all_reduce(tensor, group))

    def reduce_scatter(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        self._call(group, lambda: self._communicator.reduce_scatter(out, tensor, group))

    def all_gather(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        self._call(group, lambda: self._communicator.all_gather(out, tensor, group))

    def broadcast(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        self._call(group, lambda: self._communicator.broadcast(tensor, source, group))

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> None:
        self._ways[group].add((self._place(group), target))
        self._call(group, lambda: self._communicator.send(tensor, target, group))

    def receive(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        self._ways[group].add((source, self._place(group)))
        self._call(group, lambda: self._communicator.receive(tensor, source, group))

    def handle(self, group: str) -> str:
        return self._communicator.handle(group)

    def check(self) -> None:
        self._communicator.check()

    def expect(self, seconds: float) -> None:
        self._communicator.expect(seconds)

    def silence_of(self, rank: int) -> Silence:
        return self._communicator.silence_of(rank)

    def failure(self) -> str | None:
        return self._communicator.failure()

    def abort(self, cause: str) -> None:
        self._communicator.abort(cause)

    def close(self) -> None:
        self._communicator.close()

    def _place(self, group: str) -> int:
        return self.shape.groups_of(self.rank)[group].ranks.index(self.rank)

    def _call(self, group: str, call: Callable[[], None]) -> None:
        self._threads[group].add(threading.get_ident())
        lock = self._busy[group]
        if not lock.acquire(blocking=False):
            self._at_once.append(f"two threads call group '{group}' at once")
            return call()
        try:
            call()
        finally:
            lock.release()
        return None
