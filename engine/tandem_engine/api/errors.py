"""The errors that the engine shows to its callers.

EngineError
├── ConfigError              a setting cannot be; the replica does not start
├── CheckpointError          a model's files are missing, damaged or not understood
├── RequestError             one request cannot be served; the caller is at fault
│   ├── InvalidParameter     a value is of the wrong type or out of range
│   └── PromptTooLong        the prompt leaves no room for a token
├── RequestFailed            a request died while running; the engine goes on
├── DeadlineExceeded         a request was not done in time, and is computed no further
└── EngineStopped            the engine takes no more requests
    └── ReplicaLost          a part of the replica cannot go on: the rest ends with it
"""

from typing import Final

_LONGEST_MESSAGE: Final = 1000


class EngineError(Exception):
    """Base of all errors of the engine; the text is one sentence for a person."""


class ConfigError(EngineError):
    """A setting cannot be; the replica does not start."""


class CheckpointError(EngineError):
    """A model's files are missing, damaged or of a kind that is not understood.

    Files may hold anything, and the text quotes them: it stays one line that any terminal and any
    log can show, and is cut where it is endless.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_one_line(message))


class RequestError(EngineError):
    """One request cannot be served as it was asked; `parameter` names what to change."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class InvalidParameter(RequestError):
    """A parameter of a request is of the wrong type or out of its range."""


class PromptTooLong(RequestError):
    """The prompt leaves no room for a single new token."""


class RequestFailed(EngineError):
    """A request died while running, perhaps with others of its step; the text is the cause."""


class DeadlineExceeded(EngineError):
    """A request was not done by its deadline: it is computed no further."""


class EngineStopped(EngineError):
    """The engine is stopping or has stopped and takes no more requests."""


class ReplicaLost(EngineStopped):
    """A part of the replica cannot go on, as one of its ranks, so nothing more can be computed.

    A step that raises it ends the engine, where any other exception ends the requests of the step.
    """


def _one_line(message: str) -> str:
    """Escape unprintable characters as Python does, and cut the middle out of a long text."""
    half = _LONGEST_MESSAGE // 2
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[:half]} … {message[-half:]}"
    if message.isprintable():
        return message
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in message)
