"""The ranks of a replica and their groups, as plain data that all of them declare alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandem_engine.api.errors import ConfigError

WORLD: Final = "world"
"""The group of all ranks, which every world has."""
MAX_RANKS: Final = 256


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that take part in one collective, in the order of their places in it."""

    name: str
    """tp, pp, dp; a rank is in one group of a name at most."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorldShape:
    """All ranks of a replica, and the groups that they exchange tensors in.

    Raises:
        ConfigError: A group names a rank twice, or one that there is not; two groups of one name
            share a rank, or one is called `world`.
    """

    size: int
    """Number of ranks, 1 to 256."""
    groups: tuple[Group, ...] = ()
    """Beside the group of all."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_RANKS:
            raise ConfigError(f"A world has {self.size} ranks; it can have 1 to {MAX_RANKS}.")
        members = set[tuple[str, int]]()
        for group in self.groups:
            self._check(group)
            for rank in group.ranks:
                if (group.name, rank) in members:
                    raise ConfigError(
                        f"Rank {rank} is in group '{group.name}' twice; it can be in one group of "
                        "a name, once."
                    )
                members.add((group.name, rank))

    def _check(self, group: Group) -> None:
        if group.name == WORLD:
            raise ConfigError(f"'{WORLD}' is the group of all ranks; call another group otherwise.")
        if not group.ranks:
            raise ConfigError(f"Group '{group.name}' has no ranks; name one at least.")
        for rank in group.ranks:
            if not 0 <= rank < self.size:
                raise ConfigError(
                    f"Group '{group.name}' has rank {rank}; ranks are 0 to {self.size - 1}."
                )

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """The group of all ranks, then the declared ones."""
        return (Group(WORLD, tuple(range(self.size))), *self.groups)

    def groups_of(self, rank: int) -> Mapping[str, Group]:
        """Name → the group of that name that `rank` is in."""
        return {group.name: group for group in self.all_groups if rank in group.ranks}
