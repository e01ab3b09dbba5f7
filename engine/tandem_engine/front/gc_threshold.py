"""How often Python looks for objects that nobody but themselves refers to."""

import gc
from typing import Final

GC_THRESHOLD: Final = 50_000
"""Objects made and not freed yet after which the new ones are looked through.

A step makes two or three for each row and frees them in the next one. With Python's 700 every step
of some hundreds of rows is looked through several times while it runs; what is alive then counts as
old soon, and after enough of it all objects of the process are looked through, in one pause. That
was a third of the scheduler's time. Objects that refer to each other in a circle, of which the loop
makes none, are freed later than before: at a hundred bytes each that is 5 MB.
"""


def raise_gc_threshold() -> None:
    """Raise the number of new objects between two looks to GC_THRESHOLD, for the whole process.

    A higher number that somebody has set stays, and so does 0, which is never.
    """
    num_new, *others = gc.get_threshold()
    if 0 < num_new < GC_THRESHOLD:
        gc.set_threshold(GC_THRESHOLD, *others)
