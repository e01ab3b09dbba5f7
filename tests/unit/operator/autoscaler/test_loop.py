"""The loop: every service once a period, spread over it; slow and broken ones disturb no other."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from tandem_operator.autoscaler import loop as module
from tandem_operator.autoscaler.autoscaler import Autoscaler
from tandem_operator.autoscaler.loop import AutoscalerLoop
from tandem_operator.k8s.errors import Unreachable
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.metrics import Metrics
from tandem_operator.tasks import cancel
from tests.patience import until

Step = Callable[[NamespacedName], Awaitable[bool]]


class FakeAutoscaler:
    """Counts its steps; a test says what one does."""

    def __init__(self, step: Step | None = None) -> None:
        self._step = step
        self.steps: Counter[NamespacedName] = Counter()
        self.times: list[float] = []
        self.running = 0
        self.most = 0
        self.known: frozenset[NamespacedName] = frozenset()
        self.forgotten: list[NamespacedName] = []

    async def step(self, key: NamespacedName) -> bool:
        self.steps[key] += 1
        self.times.append(time.monotonic())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self._step(key) if self._step else False
        finally:
            self.running -= 1

    def forget(self, key: NamespacedName) -> None:
        self.forgotten.append(key)


def keys(count: int) -> list[NamespacedName]:
    return [NamespacedName("demo", f"tiny-{number}") for number in range(count)]


@asynccontextmanager
async def running(
    fake: FakeAutoscaler,
    services: list[NamespacedName],
    monkeypatch: pytest.MonkeyPatch,
    period_s: float = 0.2,
) -> AsyncIterator[Metrics]:
    monkeypatch.setattr(module, "_TICK_S", 0.01)
    metrics, closed = Metrics(), asyncio.Event()

    async def close() -> None:
        closed.set()

    loop = AutoscalerLoop(
        cast("Autoscaler", fake),
        metrics.autoscaler,
        period_s=period_s,
        services=lambda: services,
        close=close,
    )
    task = asyncio.create_task(loop.run())
    try:
        yield metrics
    finally:
        await cancel({task})
        assert closed.is_set()


async def test_every_service_has_a_step_each_period(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAutoscaler()
    async with running(fake, keys(20), monkeypatch):
        await until(lambda: all(fake.steps[key] >= 4 for key in keys(20)))

    assert max(fake.steps.values()) <= min(fake.steps.values()) + 2


async def test_steps_are_spread_over_the_period(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAutoscaler()
    began = time.monotonic()
    async with running(fake, keys(40), monkeypatch, period_s=1.0):
        await until(lambda: len(fake.times) >= 80)

    second = [at - began for at in fake.times[40:80]]
    assert second[-1] - second[0] > 0.5


async def test_a_broken_service_disturbs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(key: NamespacedName) -> bool:
        if key.name == "tiny-0":
            raise RuntimeError("a bug")
        if key.name == "tiny-1":
            raise Unreachable("the API server is away")
        return False

    fake = FakeAutoscaler(step)
    async with running(fake, keys(5), monkeypatch) as metrics:
        await until(lambda: all(fake.steps[key] >= 3 for key in keys(5)))

    assert b"autoscaler_duration_seconds_count" in metrics.exposition()


async def test_slow_steps_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(_: NamespacedName) -> bool:
        await asyncio.sleep(60)
        return False

    fake = FakeAutoscaler(step)
    async with running(fake, keys(50), monkeypatch, period_s=0.05):
        await asyncio.sleep(0.5)
        assert fake.most <= 8
        assert max(fake.steps.values()) == 1, "a service has one step at a time"

    assert fake.running == 0, "all are cancelled with the loop"


async def test_a_hand_over_is_followed_by_a_step_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SOON_S", 0.02)
    answers = iter([True])

    async def step(_: NamespacedName) -> bool:
        return next(answers, False)

    fake = FakeAutoscaler(step)
    async with running(fake, keys(1), monkeypatch, period_s=300.0):
        await until(lambda: fake.steps[keys(1)[0]] == 2)


async def test_a_service_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    services = keys(2)
    fake = FakeAutoscaler()
    fake.known = frozenset(services)
    async with running(fake, services, monkeypatch):
        await until(lambda: len(fake.steps) == 2)
        gone = services.pop()
        await until(lambda: gone in fake.forgotten)
