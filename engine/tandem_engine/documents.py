"""JSON files of a checkpoint, read with errors that name the file."""

import json
from pathlib import Path
from typing import Any, Final

from tandem_engine.api.errors import CheckpointError

CONFIG_FILE: Final = "config.json"


def read_object(path: Path, *, if_missing: str = "") -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: The file.
        if_missing: Message about a file that is not there.

    Raises:
        CheckpointError: It cannot be read, or holds something else.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        if if_missing and isinstance(error, FileNotFoundError):
            reason = f"does not exist; {if_missing}"
        raise CheckpointError(f"{path} {reason}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return document
