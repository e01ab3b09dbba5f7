"""The surroundings of one service, for the tests of the loop's steps."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.operator.autoscaler.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    async with found.stack:
        await found.start()
        yield found
