"""All operations beside their reference in torch, whatever carries them out."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.world import WORLD
from tests.unit.engine.parallel.rank_processes import members_of, sum_in_order, tensor_of

COUNTS = (0, 7, 1024, 1025, 20_003)
"""Nothing, an odd one, one slot of float32 and one more, many rounds."""
SUMMED = (torch.float32, torch.bfloat16)
COPIED = (torch.bfloat16, torch.int8, torch.int64)
Equal = Callable[[Tensor, Tensor], bool]


def nearly_equal(found: Tensor, expected: Tensor) -> bool:
    """Equal but for the order of the additions."""
    tolerance = 2**-7 if expected.dtype == torch.bfloat16 else 1e-5
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance)


def wrong_results(
    communicator: Communicator, equal: Equal = torch.equal, counts: Sequence[int] = COUNTS
) -> list[str]:
    """Carry out every operation in every group; return those whose result is not right."""
    wrong = []
    for group in communicator.shape.groups_of(communicator.rank):
        for count in counts:
            for dtype in SUMMED:
                for operation, is_right in sums(communicator, group, count, dtype, equal):
                    wrong += [] if is_right else [f"{operation} {group} {count} {dtype}"]
            for dtype in COPIED:
                for operation, is_right in copies(communicator, group, count, dtype):
                    wrong += [] if is_right else [f"{operation} {group} {count} {dtype}"]
    return wrong


def sums(
    communicator: Communicator, group: str, count: int, dtype: torch.dtype, equal: Equal
) -> Iterator[tuple[str, bool]]:
    ranks = members_of(communicator, group)
    place = ranks.index(communicator.rank)

    tensor = tensor_of(communicator.rank, count, dtype)
    communicator.all_reduce(tensor, group)
    yield "all_reduce", equal(tensor, sum_in_order([tensor_of(one, count, dtype) for one in ranks]))

    whole = len(ranks) * count
    out = torch.empty(count, dtype=dtype)
    tensor = tensor_of(communicator.rank, whole, dtype)
    communicator.reduce_scatter(out, tensor, group)
    total = sum_in_order([tensor_of(one, whole, dtype) for one in ranks])
    yield "reduce_scatter", equal(out, total[place * count : (place + 1) * count])
    yield "input of reduce_scatter", torch.equal(tensor, tensor_of(communicator.rank, whole, dtype))


def copies(
    communicator: Communicator, group: str, count: int, dtype: torch.dtype
) -> Iterator[tuple[str, bool]]:
    ranks = members_of(communicator, group)
    place = ranks.index(communicator.rank)

    out = torch.empty(len(ranks) * count, dtype=dtype)
    communicator.all_gather(out, tensor_of(communicator.rank, count, dtype), group)
    expected = torch.cat([tensor_of(one, count, dtype) for one in ranks])
    yield "all_gather", torch.equal(out, expected)

    for source, rank in enumerate(ranks):
        tensor = tensor_of(communicator.rank, count, dtype)
        communicator.broadcast(tensor, source, group)
        yield f"broadcast from {rank}", torch.equal(tensor, tensor_of(rank, count, dtype))

    # Along a ring, and the other way round at the same time.
    if len(ranks) > 1:
        for step in (1, -1):
            sent = tensor_of(communicator.rank, count, dtype)
            if place == 0:
                communicator.send(sent, step % len(ranks), group)
            tensor = torch.empty(count, dtype=dtype)
            source = (place - step) % len(ranks)
            communicator.receive(tensor, source, group)
            if place != 0:
                communicator.send(sent, (place + step) % len(ranks), group)
            yield f"receive, {step}", torch.equal(tensor, tensor_of(ranks[source], count, dtype))


def in_place_gather(communicator: Communicator) -> bool:
    """Gather into a tensor that holds the input at its place already."""
    size = communicator.shape.size
    out = torch.zeros(size, 3000)
    out[communicator.rank] = communicator.rank + 1
    communicator.all_gather(out, out[communicator.rank], WORLD)
    return torch.equal(out, torch.arange(1.0, size + 1)[:, None].expand(size, 3000))
