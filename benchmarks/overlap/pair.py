"""Both ranks, seen from here: orders go to both, and both answer."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.overlap import rank
from benchmarks.overlap.cases import Work
from benchmarks.overlap.figures import Timed
from benchmarks.overlap.link import End
from benchmarks.overlap.processes import cores_of_ranks, receive, started
from benchmarks.overlap.rank import Build, Compute, Order, RankPlace
from tandem_engine.microbatch.prices import CutPrices

_END_S: Final = 5.0
"""A rank that is in a step of minutes does not look at its pipe."""


class RankPair:
    """Two ranks that compute one model, from `opened`."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    @classmethod
    @contextmanager
    def opened(cls, ends: tuple[End, End]) -> Iterator["RankPair"]:
        """Start the ranks, each on a core of its own; end them.

        Raises:
            BenchmarkError: There are too few cores, or a rank does not start.
        """
        cores = cores_of_ranks()
        # A namespace has no names of hosts, which torch's store warns of; read when it is loaded.
        os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
        with ExitStack() as stack:
            connections: list[Connection] = []
            port = 0
            for number, core in enumerate(cores):
                place = RankPlace(rank=number, core=core, ends=ends)
                connection = stack.enter_context(
                    started(rank.main, place, port, name=f"rank {number}", end_s=_END_S)
                )
                connections.append(connection)
                port = port or receive(connection)
            yield cls(connections)

    def build(self, num_layers: int, num_tokens: int) -> None:
        """Make a model with so many layers."""
        self._all(Build(num_layers, num_tokens))

    def compute(self, work: Work, *, cut_by: CutPrices | None = None) -> Timed:
        """Compute a step on both; cut, if there are prices for it."""
        return Timed.of_ranks(self._all(Compute(work, cut_by)))

    def _all(self, order: Order) -> list[Any]:
        for connection in self._connections:
            connection.send(order)
        return [receive(connection) for connection in self._connections]
