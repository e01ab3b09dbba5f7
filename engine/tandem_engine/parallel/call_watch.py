"""Finds a call that does not end, where ranks are not heard outside of calls."""

import threading
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple, Protocol

POLL_S: Final = 0.5


class Call(Protocol):
    """A call that was made, as torch's `Work`."""

    def is_completed(self) -> bool:
        """True if it has ended, whatever came of it. Any thread may ask."""


class _Mark(NamedTuple):
    call: Call
    seen_s: float


class CallMarks:
    """The call of each group whose end is waited for; pure.

    The calls of a group end in their order. So the newest one that is seen is kept until it has
    ended: for as long, a call that was there before it may have taken.
    """

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def waiting_s(self, calls: Mapping[str, Call], now_s: float) -> tuple[float, str]:
        """Return for how long no call of some group has ended, and that group.

        Args:
            calls: The newest of each group.
            now_s: Of any clock that does not go back.
        """
        for group, call in calls.items():
            if group not in self._marks or self._marks[group].call.is_completed():
                self._marks[group] = _Mark(call, now_s)
        under_way = {
            group: now_s - mark.seen_s
            for group, mark in self._marks.items()
            if not mark.call.is_completed()
        }
        return max(((waited_s, group) for group, waited_s in under_way.items()), default=(0.0, ""))


class CallWatch:
    """A thread that looks at the newest calls twice a second.

    Args:
        newest: The newest call of each group.
        has_hung: Called once, from the thread, with a sentence.
        silence_s: Time that a call may take on top of what is expected.
    """

    def __init__(
        self,
        newest: Callable[[], Mapping[str, Call]],
        has_hung: Callable[[str], None],
        *,
        silence_s: float,
    ) -> None:
        self._newest, self._has_hung, self._silence_s = newest, has_hung, silence_s
        self._expected_s = inf
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def expect(self, seconds: float) -> None:
        """Let a call take so long on top of `silence_s`; 0: any time. Not from two threads."""
        self._expected_s = seconds or inf
        if self._thread is None and not self._ended.is_set():
            self._thread = threading.Thread(target=self._watch, name="collectives", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Look no more. Any thread may call it, also that of `has_hung`."""
        self._ended.set()

    def _watch(self) -> None:
        marks = CallMarks()
        while not self._ended.wait(POLL_S):
            waited_s, group = marks.waiting_s(self._newest(), time.monotonic())
            if waited_s > self._silence_s + self._expected_s:
                self._ended.set()
                self._has_hung(
                    f"No collective of group {group} has ended for {waited_s:.0f} s, where "
                    f"a step may take {self._expected_s:.0f} s: a rank hangs, or its device."
                )
