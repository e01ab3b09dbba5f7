"""Figures that tests take: printed when the run ends, whichever process of it took them.

A plugin; the conftest at the top registers it. A fixture takes `Figures.of(config)`.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import pytest

_OUTPUT: Final = "tandem-figures"


@dataclass
class Figures:
    """Lines by section."""

    sections: dict[str, list[str]] = field(default_factory=dict)

    _KEY = pytest.StashKey["Figures"]()

    @classmethod
    def of(cls, config: pytest.Config) -> "Figures":
        """The figures of this process of the run."""
        return config.stash.setdefault(cls._KEY, cls())

    def say(self, section: str, line: str) -> None:
        """Add a line."""
        self.sections.setdefault(section, []).append(line)

    def add(self, sections: Mapping[str, list[str]]) -> None:
        """Add those of another process."""
        for section, lines in sections.items():
            self.sections.setdefault(section, []).extend(lines)


@dataclass(frozen=True)
class Times:
    """Seconds that things took, in one section."""

    figures: Figures
    section: str

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Take the time of a block that does not raise."""
        started = time.monotonic()
        yield
        self.figures.say(self.section, f"{time.monotonic() - started:8.1f} s  {what}")

    @classmethod
    def of(cls, config: pytest.Config, section: str) -> Self:
        """Those of one section of this process."""
        return cls(Figures.of(config), section)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's figures to the process that prints."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = Figures.of(session.config).sections


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's figures; one that crashed has none."""
    output = getattr(node, "workeroutput", {})
    Figures.of(node.config).add(output.get(_OUTPUT, {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the figures."""
    for section, lines in sorted(Figures.of(config).sections.items()):
        terminalreporter.section(section)
        for line in lines:
            terminalreporter.write_line(line)
