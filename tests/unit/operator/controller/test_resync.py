"""The resync: what it lists goes into the cache, and which of it the cache then covers."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from tandem_operator.controller.resync import Resync
from tandem_operator.controller.watch import Watch
from tandem_operator.controller.watch_lag import WatchLag
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient, Listing
from tandem_operator.k8s.errors import Forbidden, KindMissing, KubeError, Overloaded
from tandem_operator.k8s.kinds import INFERENCE_SERVICE, POD, Kind
from tandem_operator.k8s.objects import NamespacedName
from tandem_operator.metrics import Metrics
from tests.patience import HANG_S

KEY = NamespacedName("demo", "tiny")
KINDS = (INFERENCE_SERVICE, POD)


class FakeWatch:
    """A watch that runs, or does not."""

    namespace = labels = None

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.lag = WatchLag()
        self.started = asyncio.Event()
        self.started.set()
        self.running_since: float | None = 0.0

    def has_run_since(self, moment: float) -> bool:
        return self.running_since is not None and self.running_since <= moment


class FakeKube:
    """An API server with one object of each kind, or an error in its place."""

    def __init__(self) -> None:
        self.errors: dict[Kind, KubeError] = {}
        self.on_list: Callable[[Kind], None] = lambda _: None
        self.num_lists = 0

    async def list_all(self, kind: Kind, *_: Any) -> Listing:
        self.num_lists += 1
        self.on_list(kind)
        if kind in self.errors:
            raise self.errors[kind]
        metadata = {"namespace": "demo", "name": "tiny", "uid": "u", "resourceVersion": "5"}
        return Listing([{"metadata": metadata}], "9")


class Bench:
    """A resync with its parts."""

    def __init__(self) -> None:
        self.kube, self.cache = FakeKube(), ObjectCache(KINDS)
        self.watches = {kind: FakeWatch(kind) for kind in KINDS}
        self.added: list[NamespacedName] = []
        self.resync = Resync(
            cast("KubeClient", self.kube),
            self.cache,
            cast("list[Watch]", list(self.watches.values())),
            Metrics(),
            every_s=60.0,
            add=lambda key, _: self.added.append(key),
            known=lambda: (),
        )
        self.resync.last_end = -1.0

    async def run_once(self) -> None:
        """Run until the first resync has ended."""
        task = asyncio.create_task(self.resync.run())
        async with asyncio.timeout(HANG_S):
            while self.kube.num_lists < len(KINDS):
                await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_what_is_listed_is_known_before_services_are_added(bench: Bench) -> None:
    add = bench.added.append

    def check(key: NamespacedName, _: float) -> None:
        assert all(bench.cache.get(kind, KEY) for kind in KINDS)
        add(key)

    bench.resync._add = check  # in place of the queue

    await bench.run_once()

    assert bench.added == [KEY]


async def test_a_list_covers_no_kind_whose_watch_does_not_run(bench: Bench) -> None:
    bench.watches[POD].running_since = None

    await bench.run_once()

    assert not bench.cache.covers(POD, "demo")
    assert bench.cache.covers(INFERENCE_SERVICE, "demo")


async def test_nor_one_whose_watch_restarted_during_the_list(bench: Bench) -> None:
    def restart(kind: Kind) -> None:
        bench.watches[kind].running_since = time.monotonic() + 1.0

    bench.kube.on_list = restart

    await bench.run_once()

    assert not any(bench.cache.covers(kind, "demo") for kind in KINDS)


@pytest.mark.parametrize("error", [Forbidden("no"), Overloaded("busy"), KindMissing("none")])
async def test_a_kind_that_cannot_be_listed_does_not_affect_the_others(
    bench: Bench, error: KubeError
) -> None:
    bench.kube.errors[POD] = error

    await bench.run_once()

    assert not bench.cache.covers(POD, "demo")
    assert bench.added == [KEY]
    assert bench.resync.last_end > 0, "a webhook of one kind that is down ends no process"


async def test_services_that_cannot_be_listed_are_tried_again_soon(bench: Bench) -> None:
    bench.kube.errors[INFERENCE_SERVICE] = Overloaded("busy")

    await bench.run_once()

    assert bench.added == []
    assert bench.resync.last_end < 0
