"""The threshold of Python's collector of reference cycles."""

import gc
from typing import Final

GC_THRESHOLD: Final = 50_000
"""Live new objects after which the collector examines the youngest generation.

A step makes two or three for each row and frees them in the next one. With Python's 700 the
collector runs several times in a step of some hundreds of rows; objects alive then soon move to the
oldest generation, whose collection examines all objects of the process in one pause. That was a
third of the scheduler's time. Reference cycles, of which the loop makes none, are freed later: at a
hundred bytes an object that is 5 MB.
"""


def raise_gc_threshold() -> None:
    """Raise the threshold of the youngest generation to GC_THRESHOLD, for the whole process.

    A higher threshold that is already set stays, and so does 0, which is never.
    """
    num_new, *others = gc.get_threshold()
    if 0 < num_new < GC_THRESHOLD:
        gc.set_threshold(GC_THRESHOLD, *others)
