"""Each device's backend has the communicator of its ranks."""

import pickle
from contextlib import closing

import pytest

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.registry import BACKENDS
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.parallel.rank_world import WORLDS, World, WorldAddress, open_world
from tandem_engine.parallel.world import WorldShape
from tandem_engine.runner.rank_group import RankGroup
from tandem_engine.runner.rank_process import RankSettings
from tests.patience import HANG_S
from tests.unit.engine.native import native_kernels


def test_every_backend_has_one() -> None:
    assert WORLDS.keys() == BACKENDS.keys()


def test_a_rank_joins_by_the_address() -> None:
    native_kernels()
    shape = WorldShape(1)

    with closing(open_world("cpu", shape)) as world:
        address: WorldAddress = pickle.loads(pickle.dumps(world.address))  # noqa: S301 - ours
        with closing(address.join(shape, 0, timeout_s=HANG_S)) as communicator:
            assert communicator.shape == shape


def test_a_device_without_one_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        open_world("tpu", WorldShape(2))

    text = "device 'tpu' has no communicator between ranks; those of cpu, npu do."
    assert str(raised.value) == text


class MadeOnly(Exception):
    """The world was asked for."""


def make_only(shape: WorldShape) -> World:
    raise MadeOnly(shape.size)


def test_a_group_of_ranks_takes_that_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORLDS, "other", f"{__name__}:make_only")
    settings = RankSettings(
        model_path="", shape=ParallelShape(tp=2), block_size=16, device="other", timeout_s=HANG_S
    )

    with pytest.raises(MadeOnly, match="2"):
        RankGroup(settings)
