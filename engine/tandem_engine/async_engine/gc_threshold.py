"""The thresholds of Python's collector of reference cycles."""

import gc
from typing import Final

GC_THRESHOLD: Final = 5_000
"""Live new objects after which the collector examines the youngest generation.

A step makes two or three for each row and frees them in the next one. With Python's 700 the
collector runs several times in a step of some hundreds of rows; objects alive then soon move to the
oldest generation, whose collection examines all objects of the process in one pause. That was a
third of the scheduler's time. A call of thousands of prompts makes as many as it can within one
pause for the collector: with 50,000 that pause was 50 ms on a busy machine, with 5,000 it is 6.
"""
SECOND_GC_THRESHOLD: Final = 100
"""Collections of the youngest generation after which the middle one is examined, too.

That is after half a million live new objects, which are 50 MB at a hundred bytes each. Reference
cycles that have outlived one collection are freed then, and the loop makes none.
"""


def raise_gc_threshold() -> None:
    """Raise the thresholds of the younger generations, for the whole process.

    Higher ones that are already set stay, and so does 0, which is never.
    """
    num_new, num_young, num_old = gc.get_threshold()
    if 0 < num_new < GC_THRESHOLD:
        gc.set_threshold(GC_THRESHOLD, max(num_young, SECOND_GC_THRESHOLD), num_old)
