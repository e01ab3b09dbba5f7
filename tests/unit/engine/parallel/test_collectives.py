"""Collectives of ranks that share memory: equal to torch's sums and copies, bit by bit."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator, make_segment
from tandem_engine.parallel.world import WORLD, Group, WorldShape
from tests.patience import HANG_S
from tests.unit.engine.native import native_kernels
from tests.unit.engine.parallel.rank_processes import (
    run_ranks,
    sum_in_order,
    tensor_of,
    two_by_two,
)
from tests.unit.engine.parallel.scenarios import in_place_gather, wrong_results

WORLDS = {
    "one rank": WorldShape(1),
    "two": WorldShape(2),
    "three, in another order": WorldShape(3, (Group("tp", (2, 0, 1)),)),
    "four in groups": two_by_two(),
}


@pytest.mark.parametrize("shape", WORLDS.values(), ids=WORLDS.keys())
def test_all_operations_are_equal_to_torch(shape: WorldShape) -> None:
    assert run_ranks(shape, wrong_results) == [[]] * shape.size


def few_counts(communicator: Communicator) -> list[str]:
    return wrong_results(communicator, counts=(1025, 100_003))


def test_results_are_the_same_with_large_slots_and_without_spinning() -> None:
    shape = WorldShape(3)

    assert run_ranks(shape, few_counts, slot_bytes=256 << 10, spin_us=0) == [[]] * 3


def test_a_gather_may_be_in_place() -> None:
    assert all(run_ranks(WorldShape(3), in_place_gather))


def sums_of_many(communicator: Communicator) -> list[bytes]:
    """Sums whose result depends on the order of additions."""
    found = []
    for count in (100, 30_000):
        for dtype in (torch.float32, torch.bfloat16):
            tensor = tensor_of(communicator.rank, count, dtype) * 10.0 ** (3 * communicator.rank)
            communicator.all_reduce(tensor)
            found.append(tensor.view(torch.uint8).numpy().tobytes())
    return found


def test_all_ranks_get_the_same_bits() -> None:
    first, *others = run_ranks(WorldShape(4), sums_of_many)

    assert all(other == first for other in others)


def ahead(communicator: Communicator) -> list[float]:
    """One rank sends all it has before the other one receives; both then go on as a group."""
    tensors = [torch.full((300,), float(number)) for number in range(3)]
    if communicator.rank == 0:
        for tensor in tensors:
            communicator.send(tensor, 1)
            communicator.broadcast(tensor, 0)
    else:
        for tensor in tensors:
            tensor.zero_()
            communicator.receive(tensor, 0)
        for tensor in tensors:
            received = torch.zeros(300)
            communicator.broadcast(received, 0)
            assert torch.equal(received, tensor)
    total = torch.ones(1)
    communicator.all_reduce(total)
    return [tensor.mean().item() for tensor in (*tensors, total)]


def test_a_sender_may_be_calls_ahead() -> None:
    assert run_ranks(WorldShape(2), ahead) == [[0, 1, 2, 2]] * 2


def specials(communicator: Communicator) -> list[list[float]]:
    values = torch.tensor([float("nan"), float("inf"), float("inf"), -0.0, 3e38])
    if communicator.rank == 1:
        values = torch.tensor([1.0, 1.0, -float("inf"), -0.0, 3e38])
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        tensor = values.to(dtype)
        communicator.all_reduce(tensor)
        found.append(tensor.tolist())
    return found


def test_special_values_are_added_as_torch_does() -> None:
    for found in run_ranks(WorldShape(2), specials):
        for values in found:
            assert str(values[:3]) == "[nan, inf, nan]"
            assert str(values[3]) == "-0.0"
            assert values[4] == float("inf")


def many_calls(communicator: SharedMemoryCommunicator, count: int) -> tuple[float, list[Any]]:
    tensor = torch.ones(3)
    for _ in range(count):
        communicator.all_reduce(tensor)
        tensor /= communicator.shape.size
    return tensor[0].item(), [tuple(call) for call in communicator.calls(communicator.rank).calls]


def test_records_hold_the_last_calls_of_each_group() -> None:
    for total, calls in run_ranks(WorldShape(2), many_calls, 3000):
        assert total == 1
        assert calls == [(2937 + at, WORLD, "all_reduce", 12, "float32") for at in range(64)]


def misuse(communicator: Communicator, pieces: int) -> list[str]:
    whole, three = torch.ones(4, 4), torch.ones(3)
    calls: list[Callable[[], object]] = [
        lambda: communicator.all_reduce(whole.t()[:2]),
        lambda: communicator.all_reduce(whole.half()),
        lambda: communicator.all_reduce(whole, "ep"),
        lambda: communicator.all_reduce(whole.to("meta")),
        lambda: communicator.all_gather(three, three),
        lambda: communicator.all_gather(torch.ones(6).half(), three),
        lambda: communicator.reduce_scatter(three, three),
        lambda: communicator.reduce_scatter(torch.ones(3, 4).t(), torch.ones(24)),
        lambda: communicator.broadcast(three, pieces),
        lambda: communicator.broadcast(three.to(torch.complex64), 0),
        lambda: communicator.send(three, communicator.rank),
        lambda: communicator.receive(three, -1),
    ]
    found = []
    for call in calls:
        with pytest.raises(ValueError) as raised:
            call()
        found.append(str(raised.value))
    communicator.all_reduce(three)
    assert three.tolist() == [pieces] * 3
    return found


def test_misuse_is_one_sentence_and_hurts_no_one() -> None:
    for messages in run_ranks(WorldShape(2), misuse, 2):
        assert messages[:3] == [
            "The tensor is not contiguous; pass tensor.contiguous().",
            "The tensor is of float16; it can be of float32, bfloat16.",
            f"Rank {messages[2].split()[1]} is in no group 'ep'; it is in world.",
        ]
        assert messages[6] == (
            "tensor has 3 elements, out 3; for the 2 members of group 'world' it must have 2 times "
            "as many."
        )
        assert messages[8] == "Group 'world' has no place 2; it has 0 to 1."
        assert all(message.endswith(".") for message in messages)


def called_after_close(communicator: Communicator) -> str:
    communicator.close()
    communicator.close()
    with pytest.raises(ValueError, match="closed") as raised:
        communicator.all_reduce(torch.ones(1))
    return str(raised.value)


def test_a_call_after_close_says_so() -> None:
    assert run_ranks(WorldShape(1), called_after_close) == [
        "The communicator is closed; make no call after close()."
    ]


def on_one_cpu(communicator: Communicator) -> list[str]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return wrong_results(communicator, counts=(1, 3000))


def test_more_ranks_than_cpus_take_turns() -> None:
    assert run_ranks(WorldShape(3), on_one_cpu, spin_us=10_000_000) == [[]] * 3


def test_the_reference_itself_depends_on_the_order() -> None:
    tensors = [tensor_of(rank, 1000, torch.float32) * 10.0 ** (3 * rank) for rank in range(3)]

    assert not torch.equal(sum_in_order(tensors), sum_in_order(tensors[::-1]))


def test_more_members_than_a_small_slot_has_cache_lines() -> None:
    """In threads: so many processes take minutes to start."""
    members, library = 65, native_kernels().library
    shape = WorldShape(members)

    def scatter(rank: int) -> float:
        tensor, out = torch.full((members, 3), float(rank)), torch.empty(3)
        with SharedMemoryCommunicator(
            segment.address, shape, rank, timeout_s=HANG_S, slot_bytes=4096, library=library
        ) as communicator:
            communicator.reduce_scatter(out, tensor)
        return float(out.sum())

    with (
        make_segment(shape, slot_bytes=4096, library=library) as segment,
        ThreadPoolExecutor(members) as pool,
    ):
        sums = list(pool.map(scatter, range(members)))

    assert sums == [3.0 * sum(range(members))] * members
