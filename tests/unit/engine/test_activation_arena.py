"""The memory of activations: no two steps have the same, and it is made once."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.device.cpu.native.arena import ActivationArena

COUNTS = st.integers(1, 500)


@given(st.lists(st.tuples(st.booleans(), COUNTS), max_size=40))
def test_no_two_steps_have_the_same_memory(course: list[tuple[bool, int]]) -> None:
    """Each entry takes memory of a size, or gives back what was taken first or last."""
    arena = ActivationArena(torch.float32)
    taken: list[tuple[Tensor, float]] = []
    for number, (takes, count) in enumerate(course):
        if takes:
            memory = arena.take(count)
            assert len(memory) == count
            taken.append((memory.fill_(number), float(number)))
        elif taken:
            arena.give_back(taken.pop(-(count % 2))[0])
        assert all((memory == value).all() for memory, value in taken)


@given(st.lists(st.tuples(COUNTS, COUNTS), min_size=1, max_size=20))
def test_halves_of_steps_share_one_piece_that_is_made_once(halves: list[tuple[int, int]]) -> None:
    arena = ActivationArena(torch.float32)
    arena.reserve(max(map(sum, halves)))

    for first, second in halves:
        early, late = arena.take(first), arena.take(second)
        assert late.data_ptr() % 64 == 0
        whole = early.untyped_storage().data_ptr()
        assert late.untyped_storage().data_ptr() == whole
        arena.give_back(late)
        arena.give_back(early)
        step = arena.take(first + second)
        assert step.untyped_storage().data_ptr() == whole
        arena.give_back(step)

    assert arena.num_made == 1


def test_what_was_needed_once_is_there_the_next_time() -> None:
    arena = ActivationArena(torch.float32)
    early, late = arena.take(300), arena.take(200)
    arena.give_back(early)
    arena.give_back(late)

    again = [arena.take(300), arena.take(200)]

    assert len({one.untyped_storage().data_ptr() for one in again}) == 1
    assert arena.num_made == 2
