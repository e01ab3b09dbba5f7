"""Messages between a benchmark and a runner: one JSON object a line, on stdin and stdout.

The benchmark asks (`Load` once, then any number of `Row`, or `MeasureRoofline`), the runner answers
each with one line: `Loaded`, `Times`, `RooflineRates`, or `Failed` with a sentence. The end of
stdin ends the runner. Only the standard library is used: the peers' interpreters run this too.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Protocol, TextIO

TEMPERATURE: Final = 1.0
TOP_P: Final = 0.95
"""Settings of sampled rows: the most usual ones of OpenAI's clients."""


class ProtocolError(Exception):
    """A line is not a message; the text quotes it."""


class Unsupported(Exception):
    """This engine does not support the request; the text is one sentence for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Make the engine ready, and reserve all that its rows need."""

    model: str
    """Folder or file in the engine's own format."""
    weights: str
    """bf16 or w8a8 (any 8 bit that the engine has)."""
    num_threads: int
    num_sequences: int
    """Sequences of the widest row."""
    num_tokens: int
    """Tokens that the KV cache must hold at once."""
    longest: int
    """Tokens of the longest sequence, prompt and answer."""
    kv_bytes: int
    """Bytes of that KV cache in bfloat16, for engines that take a size."""
    pin: bool
    """Bind each thread to one core; else all share the cores that the process may use."""
    drafts: str = ""
    """Method of speculation: ngram (prompt lookup), draft (a model); empty: none."""
    draft_model: str = ""
    """Of the method draft: as `model`."""
    num_drafts: int = 0
    """Drafts of a sequence in a step, at most."""
    banned: list[int] = field(default_factory=list)
    """Tokens that are never chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Continue every prompt by exactly so many tokens, all submitted at once."""

    prompts: list[list[int]]
    num_output: int
    is_sampled: bool = False
    """True: sampled with TEMPERATURE and TOP_P; False: greedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRoofline:
    """Measure what the machine can do at best, with a model's products."""

    gemms: list[list[int]]
    """(outputs, inputs) of one layer's products."""
    num_layers: int
    sizes: list[int]
    """Rows of the left matrix."""
    types: list[str]
    """Of weights: bf16, w8a8."""
    num_threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The engine is ready."""

    version: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When each token of each sequence came, in seconds after the row was submitted."""

    times_s: list[list[float]]
    answers: list[list[int]] = field(default_factory=list)
    """The tokens, from runners that say them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineRates:
    """Bytes a second that can be read, and operations a second of products, by rows."""

    bandwidth: float
    bandwidth_by: str
    """The program that read the memory."""
    bf16: dict[str, float]
    w8a8: dict[str, float]
    """Empty where torch has no such product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A request that could not be carried out."""

    error: str


Message = Load | Row | MeasureRoofline | Loaded | Times | RooflineRates | Failed

_KINDS: Final[dict[str, Any]] = {
    "load": Load,
    "row": Row,
    "measure_roofline": MeasureRoofline,
    "loaded": Loaded,
    "times": Times,
    "roof": RooflineRates,
    "failed": Failed,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_SHOWN: Final = 200


class Engine(Protocol):
    """An engine that is loaded."""

    @property
    def version(self) -> str:
        """Version of the engine's package."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the engine, for the reader of the result."""

    def generate(
        self, prompts: Sequence[Sequence[int]], num_output: int, *, is_sampled: bool
    ) -> list[list[float]]:
        """Run a row; return the times (`clock`) of each sequence's tokens."""


def encode(message: Message) -> str:
    """The message as one line."""
    return json.dumps({"kind": _NAMES[type(message)]} | asdict(message)) + "\n"


def decode(line: str) -> Message:
    """The message that a line holds.

    Raises:
        ProtocolError: it holds none.
    """
    try:
        content = json.loads(line)
        kind = _KINDS[content.pop("kind")]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ProtocolError(f"'{line.strip()[:_SHOWN]}' is not a message.") from None
    names = {field.name for field in fields(kind)}
    if names != content.keys():
        wrong = ", ".join(sorted(names ^ content.keys()))
        raise ProtocolError(f"A {_NAMES[kind]} message lacks, or does not know: {wrong}.")
    message: Message = kind(**content)
    return message


def clock() -> float:
    """Seconds of the clock that `Engine.generate` answers in."""
    return time.perf_counter()


def serve(load: Callable[[Load], Engine]) -> None:
    """Answer messages from stdin until it ends, with an engine that `load` makes.

    Call it before the engine is imported: it pins the process to the cores that the first argument
    names (such as 0,1), and keeps stdout for answers; what libraries print goes to stderr.
    """
    engine: Engine | None = None

    def answer(message: Message) -> Message:
        nonlocal engine
        match message:
            case Load():
                engine = load(message)
                return Loaded(version=engine.version, settings=engine.settings)
            case Row() if engine is not None:
                return _run_row(engine, message)
            case _:
                raise ProtocolError(f"A {_NAMES[type(message)]} message came out of order.")

    serve_with(answer)


def serve_with(answer: Callable[[Message], Message]) -> None:
    """Answer each line of stdin by `answer`; its errors become `Failed`. See `serve`."""
    _pin(sys.argv[1:])
    replies = _private_stdout()
    for line in sys.stdin:
        replies.write(encode(_answered(answer, line)))
        replies.flush()


def _answered(answer: Callable[[Message], Message], line: str) -> Message:
    try:
        return answer(decode(line))
    except (Unsupported, ProtocolError) as error:
        return Failed(error=str(error))
    # The top of the process: whatever an engine raises is the answer, and the trace is in the log.
    except Exception as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        return Failed(error=f"{type(error).__name__}: {error}".splitlines()[0][:_SHOWN])


def _run_row(engine: Engine, row: Row) -> Times:
    begin_s = clock()
    times_s = engine.generate(row.prompts, row.num_output, is_sampled=row.is_sampled)
    wrong = [len(times) for times in times_s if len(times) != row.num_output]
    if wrong or len(times_s) != len(row.prompts):
        raise ProtocolError(
            f"The engine gave {wrong[0] if wrong else 0} tokens where {row.num_output} were asked "
            f"for ({len(times_s)} of {len(row.prompts)} sequences)."
        )
    return Times(
        times_s=[[at_s - begin_s for at_s in times] for times in times_s],
        answers=getattr(engine, "answers", []),
    )


def _pin(arguments: Sequence[str]) -> None:
    if arguments and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in arguments[0].split(",")})


def _private_stdout() -> TextIO:
    """Standard output for answers alone; native code that prints to it prints to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies
