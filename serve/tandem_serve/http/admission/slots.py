"""Counts the slots in use, and admits or refuses calls by `policy`."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tandem_serve.api.slots import max_in_flight
from tandem_serve.http import errors
from tandem_serve.http.admission.policy import Admitted, Refused, admit

NUM_REMEMBERED: Final = 64
"""Number of freed slots over which the rate is taken."""


class AdmissionControl:
    """The slots of one replica.

    Slots are counted as the engine counts: each choice, or beam, of each prompt is one sequence.
    A call takes the slots of all of its sequences, and gives them back together when it ends.
    """

    def __init__(
        self, max_link_num: int, monotonic_s: Callable[[], float], noun: str = "sequences"
    ) -> None:
        """Make an empty one; `noun` names the holders of slots in messages."""
        self._max_link_num = max_link_num
        self._monotonic_s = monotonic_s
        self._noun = noun
        self._ends_s: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._num_in_flight = 0
        self._num_refused = 0

    @property
    def num_in_flight(self) -> int:
        """Slots in use now."""
        return self._num_in_flight

    @property
    def num_refused(self) -> int:
        """Slots requested and not granted since the start."""
        return self._num_refused

    @contextmanager
    def slots(self, request: "SlotRequest") -> Iterator[None]:
        """Hold the slots of `request`.

        Raises:
            ApiError: there are too few now (429), or there never will be so many (400).
        """
        request.check_fits(self._max_link_num)
        num_new = request.num_slots
        match self._ask(num_new):
            case Refused() as refused:
                self._num_refused += num_new
                raise errors.queue_full(refused, self._noun)
            case Admitted():
                self._num_in_flight += num_new
        try:
            yield
        finally:
            self._num_in_flight -= num_new
            self._ends_s.extend([self._monotonic_s()] * min(num_new, NUM_REMEMBERED))

    def check_open(self) -> None:
        """Refuse a call early while no slot is free.

        Raises:
            ApiError: all slots are taken (429).
        """
        match self._ask(1):
            case Refused() as refused:
                self._num_refused += 1
                raise errors.queue_full(refused, self._noun)
            case Admitted():
                return

    def completions_per_s(self) -> float:
        """Recent rate at which slots became free; 0 when it is not known."""
        if not self._ends_s:
            return 0.0
        span_s = self._monotonic_s() - self._ends_s[0]
        return len(self._ends_s) / span_s if span_s > 0.0 else 0.0

    def _ask(self, num_new: int) -> Admitted | Refused:
        return admit(
            num_in_flight=self._num_in_flight,
            max_link_num=self._max_link_num,
            num_new=num_new,
            completions_per_s=self.completions_per_s(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """Slots that one call requests."""

    num_prompts: int = 1
    param: str = "n"
    """The field with the number of choices of each prompt."""
    num_each: int = 1
    """Sequences of each prompt."""

    @property
    def num_slots(self) -> int:
        """Slots of the whole call."""
        return self.num_prompts * self.num_each

    def check_fits(self, max_link_num: int) -> None:
        """Refuse a call that could never be admitted.

        Raises:
            ApiError: it requests more slots than there are (400).
        """
        most = max_in_flight(max_link_num)
        if self.num_slots <= most:
            return
        # The prompts are too many, unless a single one exceeds the slots.
        is_split = self.num_each <= most
        raise errors.ApiError(
            f"{self._text()}; this server takes at most {most} sequences at once, three times its "
            f"maxLinkNum of {max_link_num}. "
            + ("Send the prompts in several requests." if is_split else f"Lower {self.param}."),
            param="prompt" if is_split else self.param,
            code="invalid_value",
        )

    def _text(self) -> str:
        if self.num_each == 1:
            return f"prompt has {self.num_prompts} prompts"
        if self.num_prompts == 1:
            return f"{self.param} is {self.num_each}"
        return (
            f"prompt has {self.num_prompts} prompts and {self.param} is {self.num_each}, which "
            f"makes {self.num_slots} sequences"
        )
