"""Ranks in processes of their own, for tests: each runs a function with its communicator."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

import torch

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.segment import SegmentAddress
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator, make_segment
from tandem_engine.parallel.world import Group, WorldShape
from tests.patience import HANG_S
from tests.unit.engine.native import native_kernels

Scenario = Callable[..., Any]
Open = Callable[[tuple[Any, ...], WorldShape, int, dict[str, Any]], Communicator]
"""Far above what any of these takes, and below what a test run may take."""
SLOT_BYTES: Final = 4096
"""The smallest there are: a few KB take many rounds."""
# Its processes come from one that has imported torch, and has no threads.
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def two_by_two() -> WorldShape:
    """Four ranks: pairs of neighbours, pairs across in both orders, and three in another order."""
    return WorldShape(
        4,
        (
            Group("tp", (0, 1)),
            Group("tp", (2, 3)),
            Group("pp", (0, 2)),
            Group("pp", (3, 1)),
            Group("three", (3, 0, 2)),
        ),
    )


@dataclass(frozen=True)
class Rank:
    """A process, and where its result comes from."""

    process: BaseProcess
    connection: Connection

    def result(self) -> Any:
        """What its scenario returned; raises what it raised."""
        kind = "joined"
        while kind == "joined":
            kind, value = self._next()
        if kind == "raised":
            raise value
        return value

    def wait_until_joined(self) -> None:
        """Return when it has joined its world."""
        kind, value = self._next()
        assert kind == "joined", value

    def _next(self) -> tuple[str, Any]:
        assert self.connection.poll(HANG_S), "a rank hangs"
        kind, value = self.connection.recv()
        return kind, value

    def error(self) -> Exception:
        """What its scenario raised."""
        try:
            found = self.result()
        except Exception as error:  # noqa: BLE001 - any is what a test asks for
            return error
        raise AssertionError(f"no error, but {found!r}")

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


@contextmanager
def ranks_of(
    shape: WorldShape,
    scenario: Scenario,
    *args: Any,
    others: dict[int, Scenario] | None = None,
    shapes: dict[int, WorldShape] | None = None,
    **options: Any,
) -> Iterator[list[Rank]]:
    """Start all ranks of a world that shares memory.

    Args:
        shape: The world.
        scenario: Function of a communicator and `args`.
        args: They must be plain data.
        others: Rank → another scenario.
        shapes: Rank → the shape that it declares, if it is another.
        options: Of the communicators.
    """
    native_kernels()
    options = {"slot_bytes": SLOT_BYTES, "timeout_s": HANG_S, **options}
    with make_segment(shape, slot_bytes=options["slot_bytes"]) as segment:
        ranks = []
        for rank in range(shape.size):
            declared = (shapes or {}).get(rank, shape)
            work = (others or {}).get(rank, scenario)
            ranks.append(_start(_share, segment.address, declared, rank, work, args, options))
        with _ended(ranks):
            yield ranks


def run_ranks(shape: WorldShape, scenario: Scenario, *args: Any, **options: Any) -> list[Any]:
    """Results of all ranks of a world that shares memory."""
    with ranks_of(shape, scenario, *args, **options) as ranks:
        return [rank.result() for rank in ranks]


@contextmanager
def _ended(ranks: list[Rank]) -> Iterator[None]:
    try:
        yield
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.join()
            rank.process.close()
            rank.connection.close()


def _share(
    address: tuple[Any, ...], shape: WorldShape, rank: int, options: dict[str, Any]
) -> Communicator:
    library = native_kernels().library
    return SharedMemoryCommunicator(
        SegmentAddress(*address), shape, rank, library=library, **options
    )


def _start(
    opener: Open,
    address: tuple[Any, ...],
    shape: WorldShape,
    rank: int,
    scenario: Scenario,
    args: Sequence[Any],
    options: dict[str, Any],
) -> Rank:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(
        target=_main, args=(sender, opener, tuple(address), shape, rank, scenario, args, options)
    )
    process.start()
    sender.close()
    return Rank(process, receiver)


def _main(
    sender: Connection,
    opener: Open,
    address: tuple[Any, ...],
    shape: WorldShape,
    rank: int,
    scenario: Scenario,
    args: Sequence[Any],
    options: dict[str, Any],
) -> None:
    torch.set_num_threads(1)
    try:
        with closing(opener(address, shape, rank, options)) as communicator:
            sender.send(("joined", None))
            result = ("returned", scenario(communicator, *args))
    except Exception as error:  # noqa: BLE001 - it goes to the test
        result = ("raised", error)
    sender.send(result)


def tensor_of(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's input; the others can compute it, too."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator).to(dtype)
    return torch.randint(-100, 100, (count,), generator=generator).to(dtype)


def sum_in_order(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reference: from the first to the last in float32, rounded once."""
    total = tensors[0].float()
    for tensor in tensors[1:]:
        total = total + tensor.float()
    return total.to(tensors[0].dtype)


def members_of(communicator: Communicator, group: str) -> tuple[int, ...]:
    """The ranks of this rank's group of a name."""
    return communicator.shape.groups_of(communicator.rank)[group].ranks
