"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tandem_serve.errors import ServeError


@contextmanager
def whole_file(path: Path, option: str) -> Iterator[BinaryIO]:
    """Open a draft that becomes `path` when the block ends well, and vanishes otherwise.

    Args:
        path: The file; one that is there is replaced.
        option: The option that named it, for messages.

    Raises:
        ServeError: it cannot be written; the text says why.
    """
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            kind = "is a folder" if path.is_dir() else "is no regular file"
            raise ServeError(f"{option} {path} {kind}; name a file to write.")
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        file = draft.open("xb")
    except (OSError, ValueError) as error:
        raise _unwritable(path, option, error) from None
    try:
        with file:
            yield file
        draft.replace(path)
    except OSError as error:
        raise _unwritable(path, option, error) from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _unwritable(path: Path, option: str, error: OSError | ValueError) -> ServeError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ServeError(
        f"{option} {path} cannot be written: {reason}; name a file in a folder that is there and "
        "yours."
    )
