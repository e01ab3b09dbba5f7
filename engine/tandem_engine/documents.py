"""JSON files of a checkpoint, read with errors that name the file."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

from tandem_engine.api.errors import CheckpointError

CONFIG_FILE: Final = "config.json"
GENERATION_CONFIG_FILE: Final = "generation_config.json"
MOST_POSITIONS: Final = 2**32 - 1
"""MindIE's upper limit of maxSeqLen."""
WIDEST: Final = 2**24
"""Far above any width, vocabulary or number of layers; a product of two of them fits 64 bits."""


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


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object, read with the type that they must have."""

    path: Path
    values: Mapping[str, Any]
    within: str = ""
    """The object's own path in the file, with a dot behind it."""

    def error(self, reason: str) -> CheckpointError:
        """The error that names the file, to be raised."""
        return CheckpointError(f"{self.path}: {reason}")

    def get(self, key: str) -> Any:
        """The value, or None where there is none or it is null."""
        return self.values.get(key)

    def refuse(self, key: str, expected: str) -> CheckpointError:
        """The error of a value that is missing or not what is expected."""
        if self.get(key) is None:
            return self.error(f"{self.within}{key} is missing")
        return self.error(f"{self.within}{key} is {json.dumps(self.get(key))}, not {expected}")

    def count(self, key: str, default: int | None = None, *, most: int = WIDEST) -> int:
        """A whole number from 1 to `most`."""
        value = default if self.get(key) is None else self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.refuse(key, f"a whole number from 1 to {most}")
        return value

    def positions(self, key: str, default: int | None = None) -> int:
        """A number of tokens."""
        return self.count(key, default, most=MOST_POSITIONS)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = default if self.get(key) is None else self.get(key)
        if not _is_positive(value):
            raise self.refuse(key, "a number above 0")
        return float(value)

    def optional(self, key: str) -> float | None:
        """A number above 0, or None where there is none."""
        return None if self.get(key) is None else self.number(key)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of so many numbers above 0."""
        values = self.get(key)
        is_list = isinstance(values, list) and len(values) == count
        if not is_list or not all(map(_is_positive, values)):
            raise self.refuse(key, f"a list of {count} numbers above 0")
        return tuple(map(float, values))

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false."""
        value = default if self.get(key) is None else self.get(key)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value


def _is_positive(value: Any) -> TypeGuard[int | float]:
    # A whole number of JSON may be larger than any float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max


def read_config(folder: Path) -> Fields:
    """The fields of config.json in the folder of a checkpoint.

    Raises:
        CheckpointError: It is missing, or holds something else.
    """
    path = folder / CONFIG_FILE
    if_missing = f"a checkpoint is a folder with {CONFIG_FILE} in it"
    return Fields(path, read_object(path, if_missing=if_missing))
