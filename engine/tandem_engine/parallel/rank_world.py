"""The world of a replica's ranks as it comes to be: each device's backend has its communicator.

Rank 0 makes the world before it starts the others, which get its address and join by that.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Final, Protocol, cast

from tandem_engine.api.errors import ConfigError
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.world import WorldShape

WORLDS: Final = {
    "cpu": "tandem_engine.parallel.shared_memory:SharedMemoryWorld",
    "npu": "tandem_engine.parallel.hccl:HcclWorld",
}
"""Backend of `device.registry` → "module:attribute" of a callable that takes the shape of a world
and returns a `World`; imported when it is chosen."""


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


def open_world(device: str, shape: WorldShape) -> World:
    """The world of ranks on a device.

    Args:
        device: Name of its backend.
        shape: As all ranks declare it.

    Raises:
        ConfigError: The backend has no communicator, or what that needs is not there.
        SegmentError: The kernel has no memory for it.
    """
    if device not in WORLDS:
        raise ConfigError(
            f"device '{device}' has no communicator between ranks; those of {', '.join(WORLDS)} do."
        )
    module, attribute = WORLDS[device].split(":")
    make = cast(Callable[[WorldShape], World], getattr(import_module(module), attribute))
    return make(shape)
