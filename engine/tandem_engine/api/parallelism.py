"""The ranks of a replica, as a manifest gives them: MindIE's worldSize, tp, dp, vLLM's pp."""

from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, Field

from tandem_engine.api.checks import (
    Check,
    Choice,
    Comparison,
    Constant,
    Expression,
    Quotient,
    Remainder,
    Times,
    Value,
    Written,
)
from tandem_engine.api.constraints import NotEqual
from tandem_engine.api.model import Model

LARGEST_WORLD: Final = 64
"""Ranks of a replica at most: as many as it may have cards."""

_DP_OFF: Final = -1
_RANKS_OR_OFF: Final = NotEqual(
    0, f"0 is neither {_DP_OFF} (off) nor a number of groups; allowed: {_DP_OFF}, or 1 to 64"
)

Ranks = Annotated[int, Field(ge=1, le=LARGEST_WORLD)]
DataParallel = Annotated[int, Field(ge=_DP_OFF, le=LARGEST_WORLD), AfterValidator(_RANKS_OR_OFF)]


def _or_one(path: str) -> Expression:
    """Return the expression of a degree; one that is switched off, or out of range, counts as 1."""
    return Choice(Value(path) > Constant(0), Value(path), Constant(1))


def _written_or_one(path: str) -> Expression:
    return Choice(Written(path), _or_one(path), Constant(1))


def _groups(path: str = "") -> Expression:
    """Return the expression of the groups of tp that there are; `path` leads to the settings."""
    return Times(_or_one(f"{path}pp"), _or_one(f"{path}dp"))


def _product(path: str = "") -> Expression:
    """Return the expression of tp · pp · dp, an absent tp as 1."""
    return Times(_written_or_one(f"{path}tp"), _groups(path))


def num_ranks(path: str = "") -> Expression:
    """Return the expression of the ranks of a replica; `path` leads to the settings."""
    world_size = f"{path}worldSize"
    return Choice(Written(world_size), _or_one(world_size), _product(path))


def num_tp(path: str = "") -> Expression:
    """Return the expression of the ranks that share each layer; `path` leads to the settings.

    It is 1 or 0 where they do not share: without tp and worldSize it is 1 / (pp · dp).
    """
    tp = f"{path}tp"
    quotient = Quotient(_written_or_one(f"{path}worldSize"), _groups(path))
    return Choice(Written(tp), Value(tp), quotient)


_IS_POSSIBLE: Final = Comparison(_product(), "<=", Constant(LARGEST_WORLD))


class ParallelismConfig(Model):
    """How many ranks a replica has, and how they share the model: tp · pp · dp = worldSize.

    A rank is a process that computes, on a card of its own where the device has cards.
    """

    world_size: Ranks | None = None
    """Ranks of a replica; absent means tp · pp · dp."""

    tp: Ranks | None = None
    """Ranks that share each layer (tensor parallel); absent means worldSize / (pp · dp), so that
    worldSize alone is tp."""

    pp: Ranks = 1
    """Stages, one behind the other, with some of the layers each (pipeline parallel)."""

    dp: DataParallel = 1
    """Groups of tp · pp ranks with the whole model each, which compute different requests (data
    parallel); -1, MindIE's word for off, means 1."""

    sp: bool = False
    """true: the ranks of tp also share the tokens of a prefill between their matrices (sequence
    parallel). Needs tp above 1; MindIE's sp is equal to tp."""

    CHECKS: ClassVar[tuple[Check, ...]] = (
        Check(
            field="tp",
            refused=~_IS_POSSIBLE,
            problem="tp {tp} · pp {pp} · dp {dp} are {ranks} ranks, and a replica has at most "
            f"{LARGEST_WORLD}; lower one of the three",
            values={"tp": _written_or_one("tp"), "dp": _or_one("dp"), "ranks": _product()},
        ),
        Check(
            field="worldSize",
            refused=Written("worldSize")
            & Written("tp")
            & _IS_POSSIBLE
            & ~Value("worldSize").equals(_product()),
            problem="worldSize {worldSize} is not tp {tp} · pp {pp} · dp {dp}, which are {ranks} "
            "ranks; set worldSize to {ranks}, leave worldSize out, or change a degree",
            values={"dp": _or_one("dp"), "ranks": _product()},
        ),
        Check(
            field="worldSize",
            refused=Written("worldSize")
            & ~Written("tp")
            & ~Remainder(Value("worldSize"), _groups()).equals(0),
            problem="worldSize {worldSize} cannot be shared by pp {pp} · dp {dp} evenly; set "
            "worldSize to a multiple of {groups}, or lower pp or dp",
            values={"groups": _groups(), "dp": _or_one("dp")},
        ),
        Check(
            field="sp",
            refused=Value("sp") & (num_tp() <= Constant(1)),
            problem="sp true needs tp of 2 or more, not 1: the ranks of tp share the tokens; raise "
            "tp or leave sp out",
        ),
    )

    @property
    def num_tp(self) -> int:
        """Ranks that share each layer."""
        if self.tp is not None:
            return self.tp
        return 1 if self.world_size is None else self.world_size // (self.pp * self.num_dp)

    @property
    def num_dp(self) -> int:
        """Groups of ranks with the whole model each."""
        return max(self.dp, 1)

    @property
    def ranks(self) -> int:
        """Ranks of a replica."""
        return self.num_tp * self.pp * self.num_dp

    def resolved(self) -> Self:
        """Return the same with every field written: equal for all ways to write the same ranks."""
        return type(self)(
            world_size=self.ranks, tp=self.num_tp, pp=self.pp, dp=self.num_dp, sp=self.sp
        )
