"""A device's name stands in three places, which docs/design/extending.md lists."""

from typing import get_args

from tandem_engine.api.device_facts import Device
from tandem_engine.device.registry import BACKENDS
from tandem_engine.parallel.rank_world import WORLDS


def test_manifests_take_the_devices_that_there_are() -> None:
    assert set(get_args(Device)) == set(BACKENDS) == set(WORLDS)
