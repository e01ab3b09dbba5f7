"""Reads from the cache, and from the API server where the cache cannot answer."""

from typing import Any, cast

import pytest

from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import KindMissing
from tandem_operator.k8s.kinds import POD, PROMETHEUS_RULE, SECRET, Kind
from tandem_operator.k8s.names import SERVICE
from tandem_operator.k8s.objects import NamespacedName, Object
from tandem_operator.k8s.reader import CachedReader

KEY = NamespacedName("demo", "tiny")
ITEM: Object = {
    "metadata": {
        "namespace": "demo",
        "name": "tiny",
        "resourceVersion": "5",
        "labels": {SERVICE: "tiny"},
    }
}


class FakeKube:
    """An API server that notes what it is asked, and has nothing."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    async def get(self, kind: Kind, key: NamespacedName) -> Object | None:
        self.requests.append(f"get {kind.plural} {key}")
        return None

    async def list(self, kind: Kind, namespace: str, *_: Any, **__: Any) -> list[Object]:
        self.requests.append(f"list {kind.plural} {namespace}")
        return []


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube()


@pytest.fixture
def cache() -> ObjectCache:
    cache = ObjectCache([POD])
    cache.replace(POD, None, [ITEM], "9")
    return cache


@pytest.fixture
def reader(kube: FakeKube, cache: ObjectCache) -> CachedReader:
    return CachedReader(cast("KubeClient", kube), cache)


async def test_what_is_known_costs_no_request(reader: CachedReader, kube: FakeKube) -> None:
    assert await reader.get(POD, KEY)
    assert len(await reader.of_service(POD, KEY)) == 1
    assert not await reader.of_service(POD, NamespacedName("demo", "other"))

    assert kube.requests == []


async def test_a_miss_is_no_proof(reader: CachedReader, kube: FakeKube) -> None:
    assert await reader.get(POD, NamespacedName("demo", "other")) is None
    assert await reader.get(SECRET, KEY) is None

    assert kube.requests == ["get pods demo/other", "get secrets demo/tiny"]


async def test_without_a_watch_everything_is_read(
    reader: CachedReader, kube: FakeKube, cache: ObjectCache
) -> None:
    cache.forget(POD, None)

    assert await reader.get(POD, KEY) is None
    assert await reader.of_service(POD, KEY) == []

    assert kube.requests == ["get pods demo/tiny", "list pods demo"]


async def test_every_reader_has_its_own_copy(reader: CachedReader) -> None:
    first = await reader.get(POD, KEY)
    assert first
    first["metadata"].clear()

    assert await reader.get(POD, KEY) != first


async def test_a_kind_that_was_found_missing_costs_no_request(
    reader: CachedReader, kube: FakeKube, cache: ObjectCache
) -> None:
    cache.missing_kinds.add(PROMETHEUS_RULE)

    with pytest.raises(KindMissing, match=r"serves no prometheusrules\.monitoring\.coreos\.com"):
        await reader.get(PROMETHEUS_RULE, KEY)

    assert kube.requests == []
