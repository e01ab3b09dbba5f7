"""Locks on cores, so that replicas on one machine compute on cores of their own.

A lock (flock) is on a file named after the core. The kernel releases it with the process, however
that ends. All users share the folder, and nothing is ever written into a file, so any user may lock
a file of another. Replicas that do not see the same folder, as in containers, do not see each
other's locks: see `cores.unpinned_reason`.
"""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FOLDER: Final = Path("/tmp/tandem-cores")  # noqa: S108 - all users must find it; see above
_MOST_REPLICAS: Final = 1024
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)


class CoreLocks:
    """The locks that this process holds; for any of its threads.

    Args:
        folder: Holds the files; created if missing.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()
        # A child has the parent's open files, and with them its locks for as long as it lives.
        os.register_at_fork(after_in_child=self._reset_in_child)

    @property
    def is_possible(self) -> bool:
        """True if this process may lock files in the folder."""
        try:
            self._make_folder()
        except OSError:
            return False
        return os.access(self.folder, os.R_OK | os.W_OK | os.X_OK)

    @property
    def cores(self) -> list[int]:
        """Cores that this process holds."""
        names = [name.removeprefix("core-") for name in self._held if name.startswith("core-")]
        return sorted(map(int, names))

    def take(self, cores: Iterable[int], most: int) -> list[int]:
        """Lock free ones of `cores`, in their order, until this process holds `most`.

        Returns:
            All cores that it holds.

        Raises:
            OSError: No file descriptor is left.
        """
        with self._lock:
            for core in cores:
                if len(self.cores) >= most:
                    break
                self._take(f"core-{core}")
            return self.cores

    def num_replicas(self) -> int:
        """Processes that compute on this machine, as far as they see this folder; at least 1.

        Raises:
            OSError: No file descriptor is left.
        """
        with self._lock:
            if not any(name.startswith("replica-") for name in self._held):
                slots = (f"replica-{number}" for number in range(_MOST_REPLICAS))
                next((slot for slot in slots if self._take(slot)), None)
            return max(1, sum(map(self._is_held, self.folder.glob("replica-*"))))

    def release_cores(self) -> None:
        """Release the cores, and still count as a replica."""
        with self._lock:
            for core in self.cores:
                os.close(self._held.pop(f"core-{core}"))

    def release(self) -> None:
        """Release all locks."""
        with self._lock:
            self._forget()

    def _take(self, name: str) -> bool:
        if name in self._held:
            return False
        file = self._opened(self.folder / name)
        if file is None:
            return False
        if not _lock(file):
            os.close(file)
            return False
        self._held[name] = file
        return True

    def _is_held(self, path: Path) -> bool:
        if path.name in self._held:
            return True
        file = self._opened(path)
        if file is None:
            return False
        # Shared: two that count at the same time must not take each other for a holder.
        is_free = _lock(file, fcntl.LOCK_SH)
        os.close(file)
        return not is_free

    def _opened(self, path: Path) -> int | None:
        """Open a file that can be locked, of any owner; None: it cannot be."""
        try:
            self._make_folder()
            try:
                return _open(path, os.O_CREAT)
            except PermissionError:
                # The kernel may refuse to "create" a file that exists and has another owner.
                return _open(path)
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                raise  # it says nothing about the file
            return None

    def _make_folder(self) -> None:
        if self.folder.is_dir():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o1777)  # not subject to the umask, as in mkdir

    def _reset_in_child(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        for file in self._held.values():
            os.close(file)
        self._held.clear()


def _open(path: Path, create: int = 0) -> int:
    # Any user can put anything there: a link to a file that would then be created, a pipe whose
    # other end is never opened.
    safely = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, os.O_RDONLY | create | safely, 0o644)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        os.close(file)
        raise PermissionError(f"{path} is not a regular file")
    if status.st_uid == os.geteuid():
        os.fchmod(file, 0o644)  # not subject to the umask, as in open
    return file


def _lock(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
