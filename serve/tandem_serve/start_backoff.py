"""Backoff between the starts of a replica that keeps failing; Ray has none."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tandem_serve.api.ray_env import START_COUNT_FILE

# The start costs some seconds of CPU by itself: the first repetition need not wait.
_FREE: Final = 1
_LONGEST_PAUSE_S: Final = 60


@dataclass(frozen=True, slots=True)
class StartBackoff:
    """Counts the starts in a row that have not succeeded, in a file that outlives the process."""

    file: Path | None
    """None: starts are not counted."""

    @classmethod
    def of_environment(cls) -> Self:
        """The counter that this replica's environment names."""
        name = os.environ.get(START_COUNT_FILE)
        return cls(Path(name) if name else None)

    def pause_s(self) -> int:
        """Seconds that the next start should wait: 0, 0, 2, 4, … 60."""
        late = self._count() - _FREE
        return min(2**late, _LONGEST_PAUSE_S) if late > 0 else 0

    def begin(self) -> None:
        """Count a start, before its outcome is known."""
        if self.file is not None:
            self.file.write_text(str(self._count() + 1), encoding="ascii")

    def succeed(self) -> None:
        """Reset the count."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)

    def _count(self) -> int:
        if self.file is not None:
            with suppress(OSError, ValueError):
                return int(self.file.read_text(encoding="ascii"))
        return 0
