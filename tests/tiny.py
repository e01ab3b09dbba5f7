"""tandem-tiny as the accuracy benchmark of the project: its held-out questions, and grading."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

TINY = Path(__file__).parents[1] / "examples" / "tandem-tiny"
NUM_QUESTIONS = 500
LEAST_ACCURACY = 0.98
MAX_ANSWER_TOKENS = 24


@cache
def questions() -> ModuleType:
    """examples/tandem-tiny/questions.py; its folder is no package, so it is loaded by path."""
    spec = importlib.util.spec_from_file_location("questions", TINY / "questions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["questions"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def held_out(count: int = NUM_QUESTIONS) -> list[Any]:
    """Conversations that end in questions which training never saw, few-shot examples in front."""
    conversations: list[Any] = questions().held_out(count)
    return conversations


def accuracy(conversations: Sequence[Any], answers: Mapping[int, str]) -> float:
    """Share of answers that are exactly right; an answer that is missing is wrong."""
    right = sum(answers.get(at) == each.answer for at, each in enumerate(conversations))
    return float(right / len(conversations))


def misses(conversations: Sequence[Any], answers: Mapping[int, str]) -> list[str]:
    """Return the failures, a line each, for the message of a failed test."""
    return [
        f"{each.messages[-1]['content']!r}: {answers.get(at)!r}, not {each.answer!r}"
        for at, each in enumerate(conversations)
        if answers.get(at) != each.answer
    ]
