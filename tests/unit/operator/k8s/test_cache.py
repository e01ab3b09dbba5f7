"""The cache of objects: whatever order its sources come in, it ends with the server's state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.kinds import POD, RAY_SERVICE, SECRET
from tandem_operator.k8s.names import SERVICE
from tandem_operator.k8s.objects import NamespacedName, Object, version_of

KEY = NamespacedName("demo", "a")
KEYS = tuple(NamespacedName(namespace, name) for namespace in ("demo", "other") for name in "ab")


def item(key: NamespacedName = KEY, version: int = 1, **metadata: Any) -> Object:
    names = {"namespace": key.namespace, "name": key.name, "resourceVersion": str(version)}
    return {"metadata": {**names, **metadata}}


@dataclass
class Server:
    """Objects with their versions, and what every source would tell of them."""

    version: int = 8
    objects: dict[NamespacedName, Object] = field(default_factory=dict)
    events: list[Callable[[ObjectCache], object]] = field(default_factory=list)
    """The watch's, which come in this order."""

    lists: list[Callable[[ObjectCache], object]] = field(default_factory=list)
    """Answers to LISTs, which come in this order."""

    writes: list[Callable[[ObjectCache], object]] = field(default_factory=list)
    """Answers to writes, which come in any order."""

    def write(self, key: NamespacedName) -> None:
        self.version += 1
        made = item(key, self.version)
        self.objects[key] = made
        self.events.append(lambda cache: cache.put(POD, made))
        self.writes.append(lambda cache: cache.put(POD, made))

    def delete(self, key: NamespacedName) -> None:
        if self.objects.pop(key, None) is None:
            return
        self.version += 1
        gone = item(key, self.version)
        self.events.append(lambda cache: cache.remove(POD, gone))

    def list(self, namespace: str | None) -> None:
        version = str(self.version)
        items = [one for key, one in self.objects.items() if namespace in {None, key.namespace}]
        self.lists.append(lambda cache: cache.replace(POD, namespace, items, version))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just(Server.write), st.sampled_from(KEYS)),
        st.tuples(st.just(Server.delete), st.sampled_from(KEYS)),
        st.tuples(st.just(Server.list), st.sampled_from((None, "demo", "other"))),
    ),
    max_size=30,
)


@given(STEPS, st.randoms(use_true_random=False))
def test_in_any_order_the_cache_ends_with_what_the_server_has(
    steps: list[tuple[Callable[[Server, Any], None], Any]], chance: Any
) -> None:
    server, cache = Server(), ObjectCache([POD])
    server.list(None)
    for step, argument in steps:
        step(server, argument)
    chance.shuffle(server.writes)

    seen: dict[NamespacedName, int] = {}
    for tell in interleaved([server.events, server.lists, server.writes], chance):
        tell(cache)
        for key in KEYS:
            if found := cache.get(POD, key):
                version = int(version_of(found))
                assert version >= seen.get(key, 0), "no object becomes older"
                seen[key] = version

    assert {key: cache.get(POD, key) for key in KEYS if cache.get(POD, key)} == {
        key: trimmed(one) for key, one in server.objects.items()
    }


def interleaved(sources: list[list[Any]], chance: Any) -> Iterator[Any]:
    """All lists at once, each in its order."""
    left = [list(reversed(source)) for source in sources]
    while any(left):
        yield chance.choice([one for one in left if one]).pop()


def trimmed(one: Object) -> Object:
    metadata = {**one["metadata"], "managedFields": []}
    return {"apiVersion": "v1", "kind": "Pod", **one, "metadata": metadata}


@pytest.fixture
def cache() -> ObjectCache:
    return ObjectCache([POD, RAY_SERVICE])


def test_before_a_list_nothing_is_known(cache: ObjectCache) -> None:
    cache.put(POD, item())

    assert cache.get(POD, KEY) is None
    assert not cache.covers(POD, "demo")

    cache.replace(POD, "demo", [], "0")

    assert cache.get(POD, KEY), "it came after the LIST"
    assert cache.covers(POD, "demo")
    assert not cache.covers(POD, "other")
    assert not cache.covers(RAY_SERVICE, "demo")


def test_a_watch_that_ended_is_not_believed_until_the_next_list(cache: ObjectCache) -> None:
    cache.replace(POD, None, [item()], "1")
    cache.forget(POD, None)
    assert cache.get(POD, KEY) is None

    cache.replace(POD, None, [], "2")

    assert cache.covers(POD, "demo")
    assert cache.get(POD, KEY) is None


def test_a_store_restored_from_a_backup_replaces_all(cache: ObjectCache) -> None:
    """Its versions begin again below those that are known."""
    other = NamespacedName("demo", "b")
    cache.replace(POD, None, [item(version=90), item(other, 91)], "100")

    cache.replace(POD, None, [item(version=40)], "50")
    cache.put(POD, item(other, 51))

    assert version_of(cache.get(POD, KEY) or {}) == "40"
    assert version_of(cache.get(POD, other) or {}) == "51"


def test_another_kind_is_not_kept(cache: ObjectCache) -> None:
    """Every write is offered, a Secret as well."""
    cache.put(SECRET, item())

    assert not cache.covers(SECRET, "demo")


def test_the_pods_of_a_service_are_found_by_its_label(cache: ObjectCache) -> None:
    service = NamespacedName("demo", "tiny")
    labels = {SERVICE: "tiny"}
    pods = [item(NamespacedName("demo", name), labels=labels) for name in ("p2", "p1")]
    other = item(NamespacedName("other", "p1"), labels=labels)
    cache.replace(POD, None, [*pods, other, item()], "1")

    assert names(cache.of_service(POD, service)) == ["p1", "p2"]

    cache.put(POD, item(NamespacedName("demo", "p1"), 2, labels={}))
    cache.remove(POD, item(NamespacedName("demo", "p2"), 3, labels=labels))

    assert names(cache.of_service(POD, service)) == []


def names(items: list[Object]) -> list[str]:
    return [one["metadata"]["name"] for one in items]


def test_the_field_managers_stay_without_their_fields(cache: ObjectCache) -> None:
    managers = [{"manager": "me", "time": "now", "fieldsV1": {"f:spec": {}}}]
    cache.replace(RAY_SERVICE, None, [item(managedFields=managers)], "1")

    found = cache.get(RAY_SERVICE, KEY)

    assert found
    assert found["metadata"]["managedFields"] == [{"manager": "me", "time": "now"}]
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayService")
