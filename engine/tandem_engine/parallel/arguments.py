"""Checks of a call's arguments, which all communicators share; each error is a ValueError."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tandem_engine.parallel.world import Group


def group_of(groups: Mapping[str, Group], name: str, rank: int) -> Group:
    """The group of that name that `rank` is in."""
    group = groups.get(name)
    if group is None:
        raise ValueError(f"Rank {rank} is in no group '{name}'; it is in {', '.join(groups)}.")
    return group


def name_of(dtype: torch.dtype) -> str:
    """A dtype as people write it: float32."""
    return str(dtype).removeprefix("torch.")


def check_place(place: int, group: Group) -> None:
    """Refuse a place that the group does not have."""
    if not 0 <= place < len(group.ranks):
        raise ValueError(
            f"Group '{group.name}' has no place {place}; it has 0 to {len(group.ranks) - 1}."
        )


def other_rank(place: int, group: Group, rank: int) -> int:
    """The rank at a place of a group, which must not be `rank` itself."""
    check_place(place, group)
    if group.ranks[place] == rank:
        raise ValueError(
            f"This rank is at place {place} of group '{group.name}'; name another one."
        )
    return group.ranks[place]


def check_tensor(tensor: Tensor, dtypes: Iterable[torch.dtype], *, device: str = "cpu") -> None:
    """Refuse a tensor that is not contiguous, on another device, or of another dtype."""
    if not tensor.is_contiguous():
        raise ValueError("The tensor is not contiguous; pass tensor.contiguous().")
    if tensor.device.type != device:
        raise ValueError(f"The tensor is on {tensor.device}; it can be on the {device}.")
    known = list(dtypes)
    if tensor.dtype not in known:
        names = ", ".join(map(name_of, known))
        raise ValueError(f"The tensor is of {name_of(tensor.dtype)}; it can be of {names}.")


def check_reduce_scatter(out: Tensor, tensor: Tensor, group: Group) -> None:
    """Refuse an `out` that is not one of as many pieces as the group has members."""
    _check_pieces(piece=out, whole=tensor, group=group, names=("out", "tensor"))


def check_all_gather(out: Tensor, tensor: Tensor, group: Group) -> None:
    """Refuse an `out` that has not as many pieces as the group has members."""
    _check_pieces(piece=tensor, whole=out, group=group, names=("tensor", "out"))


def _check_pieces(*, piece: Tensor, whole: Tensor, group: Group, names: tuple[str, str]) -> None:
    if piece.dtype != whole.dtype:
        raise ValueError(f"out and tensor are of {piece.dtype} and {whole.dtype}; pass one dtype.")
    if not piece.is_contiguous() or not whole.is_contiguous():
        raise ValueError("out and tensor must be contiguous; pass out of torch.empty.")
    if whole.numel() != len(group.ranks) * piece.numel():
        raise ValueError(
            f"{names[1]} has {whole.numel()} elements, {names[0]} {piece.numel()}; for the "
            f"{len(group.ranks)} members of group '{group.name}' it must have "
            f"{len(group.ranks)} times as many."
        )
