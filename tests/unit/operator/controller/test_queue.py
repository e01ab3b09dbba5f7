"""The work queue: nothing twice, nothing lost, nothing given up."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tandem_operator.controller.queue import Backoff, WorkQueue

BACKOFF = Backoff(base_s=1.0, cap_s=60.0, chance=lambda: 0.0)


def queue() -> WorkQueue[str]:
    return WorkQueue(BACKOFF)


def test_a_key_added_twice_is_handed_out_once() -> None:
    work = queue()
    work.add("a", 1.0)
    work.add("a", 2.0)

    assert work.take(5.0) == "a"
    work.finish("a")

    assert work.take(5.0) is None


def test_the_earlier_moment_counts() -> None:
    work = queue()
    work.add("a", 9.0)
    work.add("a", 3.0)

    assert work.wake_at() == 3.0
    assert work.take(2.9) is None
    assert work.take(3.0) == "a"


def test_what_has_been_due_longest_comes_first() -> None:
    work = queue()
    for key, at in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
        work.add(key, at)

    assert [work.take(5.0) for _ in range(3)] == ["early", "middle", "late"]


def test_a_key_that_is_worked_on_is_not_handed_out_again() -> None:
    work = queue()
    work.add("a", 0.0)
    work.take(0.0)
    work.add("a", 0.0)

    assert work.take(9.0) is None
    assert work.wake_at() is None


def test_what_comes_in_meanwhile_is_due_afterwards() -> None:
    work = queue()
    work.add("a", 0.0)
    work.take(0.0)
    work.add("a", 1.0)
    work.finish("a")

    assert work.take(1.0) == "a"


def test_failures_wait_twice_as_long_each_time_up_to_the_cap() -> None:
    work = queue()
    work.add("a", 0.0)
    waits, now = [], 0.0
    for _ in range(8):
        assert work.take(now) == "a"
        waits.append(work.fail("a", now))
        now += waits[-1]

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_success_ends_the_waiting() -> None:
    work = queue()
    work.add("a", 0.0)
    work.take(0.0)
    work.fail("a", 0.0)
    work.take(9.0)
    work.finish("a")
    work.add("a", 9.0)
    work.take(9.0)

    assert work.fail("a", 9.0) == BACKOFF.base_s


def test_the_api_servers_retry_after_is_obeyed() -> None:
    work = queue()
    work.add("a", 0.0)
    work.take(0.0)

    assert work.fail("a", 0.0, at_least_s=30.0) == 30.0
    assert work.wake_at() == 30.0


def test_an_event_does_not_wait_for_the_backoff() -> None:
    work = queue()
    work.add("a", 0.0)
    work.take(0.0)
    work.fail("a", 0.0)
    work.add("a", 0.1)

    assert work.take(0.1) == "a"


@given(
    failures=st.integers(1, 10_000), base=st.floats(0.1, 10), cap=st.floats(10, 1000),
    chance=st.floats(0, 1),
)  # fmt: skip
def test_a_wait_is_never_longer_than_the_cap_nor_nothing(
    failures: int, base: float, cap: float, chance: float
) -> None:
    wait = Backoff(base_s=base, cap_s=cap, chance=lambda: chance).wait_s(failures)

    assert 0.75 * min(base, cap) <= wait <= cap


class QueueMachine(RuleBasedStateMachine):
    """Any order of calls, against a plain model of what the queue owes."""

    running: Bundle[str] = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.work = queue()
        self.now = 0.0
        self.owed: set[str] = set()
        self.at_work: set[str] = set()

    @rule(key=st.sampled_from("abcde"), delay=st.integers(0, 5))
    def add(self, key: str, delay: int) -> None:
        self.work.add(key, self.now + delay)
        self.owed.add(key)

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(target=running)
    def take(self) -> Any:
        key = self.work.take(self.now)
        if key is None:
            return ""
        assert key in self.owed, "it was asked for"
        assert key not in self.at_work, "never twice at once"
        self.owed.discard(key)
        self.at_work.add(key)
        return key

    @rule(key=consumes(running), fails=st.booleans())
    def end(self, key: str, fails: bool) -> None:
        if not key:
            return
        self.at_work.discard(key)
        if fails:
            self.work.fail(key, self.now)
            self.owed.add(key)
        else:
            self.work.finish(key)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.work) == len(self.owed | self.at_work)

    @invariant()
    def it_says_when_to_come_back(self) -> None:
        waits = self.owed - self.at_work
        assert (self.work.wake_at() is not None) == bool(waits)

    def teardown(self) -> None:
        for key in list(self.at_work):
            self.work.finish(key)
        self.now += 1000.0
        taken = set()
        while (due := self.work.take(self.now)) is not None:
            taken.add(due)
            self.work.finish(due)
        assert taken == self.owed, "all that is owed comes in the end"


TestQueueMachine = QueueMachine.TestCase
