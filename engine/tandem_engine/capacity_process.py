"""The process that measures a replica's capacity: a question a line, an answer a line, in JSON.

It is one of its own because a search takes seconds, in which the interpreter would hold up steps.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random

from pydantic import TypeAdapter

from tandem_engine.async_engine.capacity_question import CapacityQuestion, MeasuredCapacity
from tandem_engine.simulate.capacity_search import measure_capacity

_QUESTION = TypeAdapter(CapacityQuestion)
_ANSWER = TypeAdapter(MeasuredCapacity)


def answers(lines: Iterable[str | bytes]) -> Iterator[bytes]:
    """Yield an answer for each question."""
    for line in lines:
        begun = time.process_time()
        answer = measure_capacity(
            _QUESTION.validate_json(line),
            lambda: Random(0),  # noqa: S311  # a load, no secrets
        )
        answer = replace(answer, cpu_s=time.process_time() - begun)
        yield _ANSWER.dump_json(answer) + b"\n"


def main() -> None:
    """Answer until the caller has gone."""
    for answer in answers(sys.stdin.buffer):
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
