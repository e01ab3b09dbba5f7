"""A process that can open nothing more."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

_STANDARD = 3


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open no file, socket or process meanwhile: each fails with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_STANDARD, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
