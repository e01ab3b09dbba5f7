"""The groups of a replica's ranks, and the collectives of its stages, by a communicator."""

from typing import Final

import torch
from torch import Tensor

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.plan import ParallelShape, RankPlan
from tandem_engine.parallel.world import Group, WorldShape

TP: Final = "tp"
"""Ranks that share layers; places are tp ranks."""
PP: Final = "pp"
"""Ranks that hidden states pass; places are stages."""
DP: Final = "dp"
"""Ranks that hold the same; places are dp ranks."""


def world_shape(shape: ParallelShape) -> WorldShape:
    """The world of a replica's ranks; groups of one rank are left out, as they exchange nothing."""
    groups = dict[Group, None]()
    for rank in range(shape.world_size):
        if shape.tp > 1:
            groups[Group(TP, tuple(shape.tp_group(rank)))] = None
        if shape.pp > 1:
            groups[Group(PP, tuple(shape.pp_group(rank)))] = None
        if shape.dp > 1:
            groups[Group(DP, tuple(shape.dp_group(rank)))] = None
    return WorldShape(shape.world_size, tuple(groups))


class CommunicatorCollectives:
    """Implements `model.stages.Collectives` among the ranks of tp.

    Args:
        communicator: Of this rank, in the world of `world_shape`.
        plan: Of this rank.
    """

    def __init__(self, communicator: Communicator, plan: RankPlan) -> None:
        self._communicator = communicator
        self._tp, self._tp_rank = plan.num_tp, plan.tp_rank

    def all_reduce(self, tensor: Tensor) -> None:
        """See `Collectives`, as for all methods."""
        self._communicator.all_reduce(tensor, TP)

    def reduce_scatter(self, tensor: Tensor) -> None:
        """Each rank's sum takes the place of its own rows."""
        self._communicator.reduce_scatter(self._own(tensor), tensor, TP)

    def all_gather(self, tensor: Tensor) -> None:
        """The ranks' rows, one behind another."""
        self._communicator.all_gather(tensor, self._own(tensor), TP)

    def gather_columns(self, tensor: Tensor, num_columns: int) -> Tensor | None:
        """Send the tensor to the first rank, which alone needs all columns."""
        if self._tp_rank:
            self._communicator.send(tensor, 0, TP)
            return None
        width = tensor.shape[1]
        gathered = tensor.new_empty(len(tensor), num_columns)
        gathered[:, :width] = tensor
        part = torch.empty_like(tensor)
        for place in range(1, self._tp):
            self._communicator.receive(part, place, TP)
            columns = gathered[:, place * width : (place + 1) * width]
            columns.copy_(part[:, : columns.shape[1]])
        return gathered

    def _own(self, tensor: Tensor) -> Tensor:
        each = len(tensor) // self._tp
        return tensor[self._tp_rank * each : (self._tp_rank + 1) * each]
