"""Another process of this host, as one waits for it: dead, stopped, or just not there yet."""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tandem_engine.parallel.silence import UNHEARD, Silence
from tandem_engine.runner.shared_position import SharedPosition

_CHECK_EVERY_S: Final = 0.2
"""Time between two checks of a process that is waited for: its death is noticed within this."""
_STOPPED: Final = ("T", "t")


class PeerLost(Exception):
    """A process is dead, stopped or silent; the text is one sentence that names it."""


def _always() -> int:
    return 1


class PeerProcess:
    """The process that stores a position.

    Args:
        name: As errors name it, at the beginning of a sentence.
        position: The position.
        timeout_s: Longest time for which it may be stopped, or not be there yet.
        silence: Its silence as a rank, while it owes something.
    """

    def __init__(
        self,
        name: str,
        position: SharedPosition,
        *,
        timeout_s: float,
        silence: Silence = UNHEARD,
    ) -> None:
        self.position = position
        self.silence = silence
        self._name = name
        self._timeout_s = timeout_s
        self._pidfd: int | None = None
        self._poll = select.poll()
        self._seen = 0
        self._seen_at = time.monotonic()

    def __del__(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    def check_progress(self, end: int, *, fault: str) -> None:
        """Refuse a process that is dead, or stopped and no closer to `end` for too long.

        One that runs may compute, or wait for a rank that does, for any time.

        Args:
            end: Reached by it, or not yet.
            fault: Its fault, for the error: a verb with its object.

        Raises:
            PeerLost: So it is.
            CollectiveError: It has ended of what this says.
        """
        if self._pidfd is None:
            self._watch()
        elif self._poll.poll(0):
            raise self._dead()
        reached, now = self.position.load(), time.monotonic()
        if reached != self._seen or reached == end:
            self._seen, self._seen_at = reached, now
        elif now - self._seen_at > self._timeout_s and self._is_stopped():
            raise self._silent(fault)

    def await_change(
        self,
        position: int,
        *,
        spin_s: float,
        fault: str | None,
        turn: Callable[[], int] = _always,
    ) -> None:
        """Wait until its position is not `position` any more.

        Args:
            position: Its position as of now.
            spin_s: Time to spin before sleeping.
            fault: Its fault meanwhile, for the error; None: it has none.
            turn: Number of what it owes at that moment; 0: it owes nothing, and may take any time.

        Raises:
            PeerLost: It has died, or has been stopped for too long.
            CollectiveError: It owes something, and a rank has been silent for too long.
        """
        spin_until = time.monotonic() + spin_s
        while self.position.load() == position:
            if time.monotonic() >= spin_until:
                self._sleep(position, fault, turn)
                return

    def _sleep(self, position: int, fault: str | None, turn: Callable[[], int]) -> None:
        heard, absent_s = 0, 0.0
        try:
            while True:
                begin = time.monotonic()
                self.position.wait(position, _CHECK_EVERY_S)
                if self.position.load() != position:
                    return
                self._check_life(position)
                # A time for which this process was stopped itself is no silence of another.
                waited_s = min(time.monotonic() - begin, 2 * _CHECK_EVERY_S)
                absent_s = absent_s + waited_s if self._is_absent() else 0.0
                if absent_s > self._timeout_s:
                    raise self._silent(fault)
                heard = self._listen(position, waited_s, turn(), heard)
        finally:
            self.silence.end()

    def _listen(self, position: int, seconds: float, turn: int, heard: int) -> int:
        """Add a time to its silence if it owes something; return the number of that."""
        if turn and self.position.process:
            self.silence.listen(
                seconds,
                begins=turn != heard,
                has_come=lambda: self.position.load() != position,
            )
        elif heard:
            self.silence.end()
        return turn

    def _watch(self) -> None:
        """Open the process, if it is there and was not opened."""
        process = self.position.process
        if process and self._pidfd is None:
            try:
                self._pidfd = os.pidfd_open(process)
            except ProcessLookupError:
                raise self._dead() from None
            except OSError:
                return  # as where no descriptor is left, which says nothing of it
            self._poll.register(self._pidfd, select.POLLIN)

    def _check_life(self, position: int) -> None:
        self._watch()
        # What it has stored before its end counts.
        if self._poll.poll(0) and self.position.load() == position:
            raise self._dead()

    def _is_absent(self) -> bool:
        return not self.position.process or self._is_stopped()

    def _is_stopped(self) -> bool:
        return _state_of(self.position.process) in _STOPPED

    def _dead(self) -> PeerLost:
        # A rank that has found a fault ends of it: the fault is to blame, and is raised here.
        self.silence.listen(0.0, begins=True, has_come=lambda: False)
        self.silence.end()
        return PeerLost(
            f"{self._name} is dead (process {self.position.process}); no more steps can be "
            f"computed, and its group of ranks must start again."
        )

    def _silent(self, fault: str | None) -> PeerLost:
        process = self.position.process
        if not process:
            return PeerLost(
                f"{self._name} has not opened its channel of steps within {self._timeout_s:g} s; "
                f"see the log of its start."
            )
        stopped = "has been stopped (SIGSTOP)" if self._is_stopped() else None
        what = " and ".join(each for each in (fault, stopped) if each)
        return PeerLost(
            f"{self._name} (process {process}) {what} for more than {self._timeout_s:g} s; its "
            f"group of ranks must start again."
        )


def _state_of(process: int) -> str:
    """The letter of /proc/PID/stat for its state; empty: there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # Its name is in brackets, and may hold any character.
    return text.rpartition(")")[2].split()[0]
