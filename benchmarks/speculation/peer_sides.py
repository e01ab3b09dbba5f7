"""The sides of other engines: each in a process of its own, on the same weights and questions.

They answer one question after the other. llama.cpp looks up in the prompt by llama-cpp-python's
`LlamaPromptLookupDecoding`, vLLM by its method ngram; drafts of a model are tandem-tiny's, as ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.convert import model_for
from benchmarks.peers.engines import KINDS, EngineKind, InstalledEngine
from benchmarks.peers.process import RunnerFailed, RunnerProcess
from benchmarks.peers.runners.protocol import Load, Loaded, Message, Row, Times
from benchmarks.serving.errors import BenchmarkError
from benchmarks.speculation.sides import OFF, Turn
from tandem_engine.api.request import Request

PEERS: Final[Mapping[str, EngineKind]] = {
    "llamacpp": EngineKind(
        name="llamacpp",
        title="llama.cpp",
        runner="benchmarks.speculation.runners.llamacpp",
        types={"bf16": "bf16"},
        binds_by_openmp=True,
    ),
    "vllm": KINDS["vllm"],
}
PEER_METHODS: Final = (OFF, "ngram", "draft")
_TIMEOUT_S: Final = 600.0
_MOST_TOKENS: Final = 1024
_KV_BYTES: Final = 1 << 30


class PeerSide:
    """Another engine with one method; like `Side`.

    Args:
        runner: Its process, ready.
        name: Engine and method.
        base: Name of the side without drafts.
    """

    def __init__(self, runner: RunnerProcess, name: str, base: str) -> None:
        self.method = name
        self.base = base
        self._runner = runner

    def run(self, requests: Sequence[Request]) -> Turn:
        """Answer requests one after the other."""
        turns = [self._answer(request) for request in requests]
        return Turn(
            sum(turn.num_tokens for turn in turns),
            sum(turn.seconds for turn in turns),
            {name: tokens for turn in turns for name, tokens in turn.tokens.items()},
        )

    def accepted_share(self) -> float | None:
        """Return None: the engines do not say it in one way."""
        return None

    def close(self) -> None:
        """Do nothing: the process ends with its context."""

    def _answer(self, request: Request) -> Turn:
        row = Row(prompts=[list(request.prompt_token_ids)], num_output=request.max_new_tokens)
        times = _expect_times(self._runner.ask(row, timeout_s=_TIMEOUT_S))
        # The first token is that of the prompt's step.
        first, *_, last = times.times_s[0]
        return Turn(
            len(times.times_s[0]) - 1, last - first, {request.request_id: tuple(times.answers[0])}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What all engines are given."""

    large: Path
    """Checkpoint of the model."""
    draft: Path
    """Checkpoint of its draft model."""
    num_threads: int
    num_drafts: int
    """Of a sequence in a step, at most."""
    banned: Sequence[int]
    """Tokens that no answer has."""
    log: Path
    """File for what they print."""


@contextmanager
def peer_sides(pythons: Mapping[str, Path], settings: PeerSettings) -> Iterator[list[PeerSide]]:
    """Start the engines with each method; one that fails is left out, and the reason printed.

    Args:
        pythons: Engine → its interpreter.
        settings: Given to all of them.
    """
    with ExitStack() as stack:
        sides = []
        for name, python in pythons.items():
            engine = InstalledEngine(kind=PEERS[name], python=python)
            for method in PEER_METHODS:
                title = f"{engine.kind.title} {method}"
                try:
                    runner = stack.enter_context(_runner(engine, settings))
                    _load(runner, engine, method, settings)
                except BenchmarkError as error:
                    print(f"{title} is left out: {error}")
                    continue
                sides.append(PeerSide(runner, title, f"{engine.kind.title} {OFF}"))
        yield sides


def _runner(engine: InstalledEngine, settings: PeerSettings) -> RunnerProcess:
    return RunnerProcess(engine, range(settings.num_threads), pin=False, log=settings.log)


def _load(
    runner: RunnerProcess, engine: InstalledEngine, method: str, settings: PeerSettings
) -> None:
    def file(checkpoint: Path) -> str:
        return str(model_for(engine, checkpoint, "bf16", log=settings.log))

    answer = runner.ask(
        Load(
            model=file(settings.large),
            weights="bf16",
            num_threads=settings.num_threads,
            num_sequences=1,
            num_tokens=_MOST_TOKENS,
            longest=_MOST_TOKENS,
            kv_bytes=_KV_BYTES,
            pin=False,
            drafts="" if method == OFF else method,
            draft_model=file(settings.draft) if method == "draft" else "",
            num_drafts=settings.num_drafts,
            banned=list(settings.banned),
        ),
        timeout_s=_TIMEOUT_S,
    )
    if not isinstance(answer, Loaded):
        raise RunnerFailed(f"It sent {answer} where it should be ready.")


def _expect_times(answer: Message) -> Times:
    if not isinstance(answer, Times) or not answer.answers:
        raise RunnerFailed(f"It sent {answer} where answers should come.")
    return answer
