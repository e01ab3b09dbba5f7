"""Stop strings: the first one in a growing text, and what may become one held back."""

from collections.abc import Sequence
from typing import Final
from weakref import WeakValueDictionary


class StopAutomaton:
    """All stop strings of a request as one automaton, which all choices with the same share.

    Aho and Corasick, "Efficient string matching: an aid to bibliographic search", 1975. A
    character costs the same, however many strings there are. States come into being where a text
    leads, so that a request pays for nothing that its output does not touch. Libraries either find
    strings in a whole text only (ahocorasick_rs) or do not say how much of its end may become one
    (pyahocorasick), which is what must be held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.root = State(0, stops)
        self.firsts = frozenset(self.root.branches)
        """The characters with which stop strings begin."""

    def after(self, state: "State", char: str) -> "State":
        """The state for the longest end of the text, `char` added, that begins a stop string."""
        made: list[State] = []
        child = state.children.get(char)
        while child is None:
            if char in state.branches:
                child = state.children[char] = State(state.depth + 1, state.branches.pop(char))
                made.append(child)
            if state.shorter is None:
                child = self.root
            else:
                state = state.shorter
                child = state.children.get(char)
        for new in reversed(made):  # the shortest first: each knows the next shorter one
            new.link(child)
            child = new
        return child


_IN_USE: Final[WeakValueDictionary[tuple[str, ...], StopAutomaton]] = WeakValueDictionary()


def automaton_of(stops: tuple[str, ...]) -> StopAutomaton:
    """Return the automaton of `stops`, the one that is in use if there is one; from one thread."""
    automaton = _IN_USE.get(stops)
    if automaton is None:
        automaton = _IN_USE[stops] = StopAutomaton(stops)
    return automaton


class State:
    """One beginning that stop strings have in common.

    Args:
        depth: Its length in characters.
        stops: The stop strings that begin with it.
    """

    __slots__ = ("branches", "children", "depth", "is_open", "met", "shorter")

    def __init__(self, depth: int, stops: Sequence[str]) -> None:
        self.depth = depth
        self.met = 0
        """Characters of the longest stop string that ends here; 0: none does."""
        self.shorter: State | None = None
        """The state of its longest proper end that begins a stop string; None at the root."""
        self.children: dict[str, State] = {}
        self.branches: dict[str, list[str]] = {}
        """Stop strings by their next character, where there is no child for it yet."""
        for stop in stops:
            if len(stop) > depth:
                self.branches.setdefault(stop[depth], []).append(stop)
            else:
                self.met = depth
        self.is_open = bool(self.branches)
        """True if a stop string goes on from here."""

    def link(self, shorter: "State") -> None:
        """Say what its longest proper end is that begins a stop string."""
        self.shorter = shorter
        self.met = self.met or shorter.met


class StopStrings:
    """Finds the first stop string in a growing text and holds back what may become one.

    The first one is the one that ends first; of those that end together, the longest. It does not
    depend on how the text is cut into pieces.
    """

    def __init__(self, automaton: StopAutomaton) -> None:
        self._automaton = automaton
        self._state = automaton.root
        self._held = ""

    def push(self, text: str, *, may_end: bool = True) -> tuple[str, bool]:
        """Add `text`; return what may be shown now, and whether a stop string was met.

        Args:
            text: The next piece.
            may_end: True when a stop string counts that ends in this piece.
        """
        state, after = self._state, self._automaton.after
        if state.depth == 0 and self._automaton.firsts.isdisjoint(text):
            return text, False
        held = self._held + text
        for at, char in enumerate(text, len(self._held) + 1):
            state = after(state, char)
            if state.met and may_end:
                self._state, self._held = self._automaton.root, ""
                return held[: at - state.met], True
            while not state.is_open and state.shorter is not None:
                state = state.shorter
        self._state = state
        cut = len(held) - state.depth
        self._held = held[cut:]
        return held[:cut], False

    def flush(self) -> str:
        """Text that was held back when the output ends without a stop string."""
        held, self._held, self._state = self._held, "", self._automaton.root
        return held
