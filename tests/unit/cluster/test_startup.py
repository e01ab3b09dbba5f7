"""Steps start as soon as those before them are done, and not earlier."""

import pytest

from tools.cluster.startup import Startup, Step


class Machine:
    """A stand-in: steps start at once, and are done when the test says so."""

    def __init__(self, **after: tuple[str, ...]) -> None:
        self.started: list[str] = []
        self.ready: set[str] = set()
        self.told: list[str] = []
        self.startup = Startup([self._step(name, after[name]) for name in after], self.told.append)

    def _step(self, name: str, after: tuple[str, ...]) -> Step:
        return Step(
            name=name,
            after=after,
            start=lambda: self.started.append(name),
            is_done=lambda: name in self.ready,
        )


def test_steps_that_wait_for_nothing_start_together() -> None:
    machine = Machine(etcd=(), containerd=(), api=("etcd",))

    assert not machine.startup.tick()
    assert machine.started == ["etcd", "containerd"]


def test_a_step_starts_when_all_before_it_are_done() -> None:
    machine = Machine(api=(), containerd=(), kubelet=("api", "containerd"))
    machine.ready = {"api"}
    for _ in range(3):
        machine.startup.tick()
    assert "kubelet" not in machine.started

    machine.ready = {"api", "containerd"}
    machine.startup.tick()

    assert machine.started.count("kubelet") == 1


def test_all_is_done_once_every_step_is_and_each_is_reported_once() -> None:
    machine = Machine(etcd=(), api=("etcd",))
    machine.ready = {"etcd", "api"}

    while not machine.startup.tick():
        pass
    machine.startup.tick()

    assert machine.told == ["etcd", "api"]


def test_what_is_waited_for_can_be_named() -> None:
    machine = Machine(etcd=(), containerd=(), api=("etcd",))
    machine.ready = {"etcd"}

    for _ in range(3):
        machine.startup.tick()

    assert machine.startup.running == ["containerd", "api"]


def test_a_step_that_waits_for_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match="step api waits for etcd, which is no step"):
        Machine(api=("etcd",))
