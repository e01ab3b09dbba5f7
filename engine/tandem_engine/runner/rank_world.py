"""How the ranks of a group exchange tensors: through memory of this host.

Rank 0 makes the world before it starts the others, which get its address and join by that.
"""

from dataclasses import dataclass
from typing import Protocol

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.segment import SegmentAddress
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator, make_segment
from tandem_engine.parallel.world import WorldShape


class WorldAddress(Protocol):
    """The address by which a rank joins; can be pickled."""

    def join(self, shape: WorldShape, rank: int, *, timeout_s: float) -> Communicator:
        """Wait for all ranks, and join them.

        Args:
            shape: As all ranks declare it.
            rank: This one.
            timeout_s: The longest silence of a rank that this one waits for.

        Raises:
            CollectiveError: A rank has not joined in time, or declares another world.
        """


class World(Protocol):
    """The part of rank 0, kept for as long as ranks may join."""

    @property
    def address(self) -> WorldAddress:
        """For all ranks."""

    def close(self) -> None:
        """Free it. May be called again."""


@dataclass(frozen=True, slots=True)
class SharedMemoryAddress:
    """Implements `WorldAddress` on this host."""

    segment: SegmentAddress

    def join(self, shape: WorldShape, rank: int, *, timeout_s: float) -> Communicator:
        """See `WorldAddress`. All ranks have loaded their weights, and do nothing in between."""
        return SharedMemoryCommunicator(
            self.segment, shape, rank, timeout_s=timeout_s, join_timeout_s=timeout_s
        )


class SharedMemoryWorld:
    """Implements `World` on this host.

    Raises:
        ConfigError: There are no native kernels.
        SegmentError: The kernel has no memory for it.
    """

    def __init__(self, shape: WorldShape) -> None:
        self._segment = make_segment(shape)
        self.address = SharedMemoryAddress(self._segment.address)

    def close(self) -> None:
        """Free the segment."""
        self._segment.close()
