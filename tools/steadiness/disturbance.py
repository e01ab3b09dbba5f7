"""Takes time away from tests: busy processes beside them, and single processes that stand still."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Final

import psutil

_BUSY: Final = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
_LONGEST_PAUSE_S: Final = 2.0
"""Longest time between two processes that are stopped."""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep so many processes computing; they end with the block, or with this process."""
    line = [sys.executable, "-c", _BUSY]
    processes = [subprocess.Popen(line, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def random_stops(pid: int, random: Random, longest_s: float) -> Iterator[None]:
    """Stop one process after another below `pid`, itself included, while the block lasts.

    Each stands still for up to `longest_s` seconds; 0: none is stopped.
    """
    if longest_s <= 0:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_stop_processes, args=(pid, random, longest_s, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _stop_processes(pid: int, random: Random, longest_s: float, ended: threading.Event) -> None:
    while not ended.wait(random.uniform(0.0, _LONGEST_PAUSE_S)):
        choice, seconds = random.random(), random.uniform(0.0, longest_s)
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            root = psutil.Process(pid)
            below = [root, *root.children(recursive=True)]
            chosen = below[int(choice * len(below))]
            # One that a test has stopped itself must stay so.
            if chosen.status() != psutil.STATUS_STOPPED:
                _stop_for(chosen.pid, seconds, ended)


def _stop_for(pid: int, seconds: float, ended: threading.Event) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        ended.wait(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
