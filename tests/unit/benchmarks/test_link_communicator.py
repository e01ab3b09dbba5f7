"""The link of benchmarks.overlap carries every operation of a communicator, over loopback."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch

from benchmarks.overlap.link import LOOPBACK
from benchmarks.overlap.link_communicator import LinkWorld
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.parallel.world import Group, WorldShape
from tests.patience import HANG_S
from tests.unit.engine.parallel.scenarios import nearly_equal, wrong_results
from tests.unit.engine.parallel.test_process_groups import Meeting

SHAPE = WorldShape(2, (Group("tp", (0, 1)),))


def on_a_link(work: Callable[[Communicator], list[str]]) -> list[list[str]]:
    """Run it on both ranks, which are threads."""
    end = Meeting(SHAPE.size)
    with closing(LinkWorld([LOOPBACK] * SHAPE.size)) as world, ThreadPoolExecutor(SHAPE.size) as to:

        def be(rank: int) -> list[str]:
            with (
                closing(world.address.join(SHAPE, rank, timeout_s=HANG_S)) as communicator,
                end.after(),
            ):
                return work(communicator)

        return list(to.map(be, range(SHAPE.size)))


def test_all_operations_are_equal_to_torch() -> None:
    assert on_a_link(lambda link: wrong_results(link, nearly_equal, (1, 1025))) == [[], []]


def test_a_rank_that_has_left_fails_the_others() -> None:
    have_joined = Meeting(SHAPE.size)

    def leave_or_fail(link: Communicator) -> list[str]:
        have_joined.wait()
        if link.rank:
            link.abort("It has seen enough.")
        with pytest.raises(CollectiveError) as raised:
            link.all_reduce(torch.ones(5))
        return [raised.value.cause]

    [other], [leaver] = on_a_link(leave_or_fail)
    assert other.startswith("A collective has failed: ")
    assert leaver == "It has seen enough."
