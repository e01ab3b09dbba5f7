"""Questions with exact answers, for training and for checking the tiny model.

A test of an inference server wants answers that are either right or wrong.  Every question
here has one exact answer that this file computes itself, so no judge and no data set is needed.

About a tenth of all possible questions is held out: a stable hash of the text decides, so the
training and every later check agree on which ones the model has never seen.
"""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """One question and the only answer that counts as right."""

    kind: str
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Chat messages that end with a held-out question, and the answer to that question."""

    messages: list[Message]
    answer: str
    kind: str


def _word(rng: random.Random, shortest: int, longest: int) -> str:
    """Random letters: a real word could be known by heart, these must be read."""
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(shortest, longest)))


def _add(rng: random.Random) -> Question:
    a, b = rng.randrange(100), rng.randrange(100)
    return Question("add", f"{a}+{b}=?", str(a + b))


def _subtract(rng: random.Random) -> Question:
    """The larger number goes first, so that no answer is negative."""
    b, a = sorted((rng.randrange(100), rng.randrange(100)))
    return Question("subtract", f"{a}-{b}=?", str(a - b))


def _compare(rng: random.Random) -> Question:
    a, b = rng.sample(range(100), 2)
    word, pick = rng.choice((("Larger", max), ("Smaller", min)))
    return Question("compare", f"{word}: {a} or {b}?", str(pick(a, b)))


def _sort(rng: random.Random) -> Question:
    digits = rng.choices(string.digits, k=rng.randint(3, 5))
    return Question("sort", f"Sort: {' '.join(digits)}", " ".join(sorted(digits)))


def _count(rng: random.Random) -> Question:
    """The letter is mixed in often, since plain random words would nearly always count zero."""
    letter = rng.choice(string.ascii_lowercase)
    pool = string.ascii_lowercase + letter * 18
    word = "".join(rng.choices(pool, k=rng.randint(3, 5)))
    return Question("count", f"Count {letter} in {word}", str(word.count(letter)))


def _reverse(rng: random.Random) -> Question:
    word = _word(rng, 3, 6)
    return Question("reverse", f"Reverse: {word}", word[::-1])


def _capitals(rng: random.Random) -> Question:
    word = _word(rng, 3, 7)
    return Question("capitals", f"Capitals: {word}", word.upper())


def _double(rng: random.Random) -> Question:
    word = _word(rng, 3, 5)
    return Question("double", f"Double: {word}", "".join(letter * 2 for letter in word))


def _step(rng: random.Random, kind: str, names: Sequence[str], furthest: int) -> Question:
    """A walk along a circle of names, in one of twenty wordings.

    There are few walks, so what is held out is a wording of one: the model may have seen
    "Monday + 3 days?" when it is asked "Tell me 3 days after Monday?".  With fewer wordings it
    learnt each text by heart and missed the held-out ones.
    """
    start, steps = rng.randrange(len(names)), rng.randint(1, furthest)
    name, span = names[start], f"{steps} {kind}s" if steps > 1 else f"1 {kind}"
    opening = rng.choice(("", "What is ", "Tell me ", "Now ", f"Which {kind} is "))
    walks = (
        f"{span} after {name}?",
        f"{span} from {name}?",
        f"{name} + {span}?",
        f"{name} plus {span}?",
    )
    return Question(kind, opening + rng.choice(walks), names[(start + steps) % len(names)])


def _day(rng: random.Random) -> Question:
    return _step(rng, "day", DAYS, 5)


def _month(rng: random.Random) -> Question:
    return _step(rng, "month", MONTHS, 3)


_MAKERS: dict[str, Callable[[random.Random], Question]] = {
    "add": _add,
    "subtract": _subtract,
    "compare": _compare,
    "sort": _sort,
    "count": _count,
    "reverse": _reverse,
    "capitals": _capitals,
    "double": _double,
    "day": _day,
    "month": _month,
}
KINDS = tuple(_MAKERS)


def draw(rng: random.Random, kinds: Sequence[str] = KINDS) -> Question:
    """Draw one question; a kind that `kinds` names twice is drawn twice as often."""
    return _MAKERS[rng.choice(kinds)](rng)


def is_held_out(question: Question) -> bool:
    """Tell whether training must never see this question.

    The built-in `hash` differs from process to process; this one never changes.
    """
    digest = hashlib.sha256(question.text.encode()).digest()
    return int.from_bytes(digest[:8], "big") % 10 == 0


def draw_seen(rng: random.Random, kinds: Sequence[str] = KINDS) -> Question:
    """Draw a question that may be trained on or shown as an example."""
    while is_held_out(question := draw(rng, kinds)):
        pass
    return question


def turn(question: Question) -> list[Message]:
    """Write a question and its answer as one exchange of a chat."""
    return [
        {"role": "user", "content": question.text},
        {"role": "assistant", "content": question.answer},
    ]


def held_out(count: int, seed: int = 0, max_shots: int = 14) -> list[Conversation]:
    """Make conversations that end in distinct held-out questions.

    Each starts with 0 to `max_shots` answered examples, so that prompts are of many lengths
    (about 10 to 400 tokens), as a server under test should see them.
    """
    rng = random.Random(seed)
    conversations: list[Conversation] = []
    used: set[str] = set()
    while len(conversations) < count:
        question = draw(rng)
        if not is_held_out(question) or question.text in used:
            continue
        used.add(question.text)
        shots = [draw_seen(rng) for _ in range(rng.randint(0, max_shots))]
        messages = [message for shot in shots for message in turn(shot)]
        messages.append({"role": "user", "content": question.text})
        conversations.append(Conversation(messages, question.answer, question.kind))
    return conversations
