"""A failure anywhere inside submit or collect, with a real model: survivors say what they would.

The profiler's hook raises at one call, return or call of C in the code of the engine, while a step
is laid out, copied, computed, sampled or collected. Blocks are few: sequences are swapped out and
recomputed, share prefixes, and fork.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import tandem_engine
from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.registry import open_device
from tandem_engine.engine import Engine
from tandem_engine.kvcache.capacity import Capacity
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.load_decoder import load_decoder
from tests.integration.one_rank import engine_of_one_rank

ENGINE = str(Path(tandem_engine.__file__).parent)
BLOCK_SIZE = 16
NUM_BLOCKS = 13
NUM_HOST_BLOCKS = 8
NUM_OUTPUT = 34
COLLECTED = {"ModelRunner.submit", "ModelRunner.run", "ModelStepHandle.result"}
COMPUTED = {"ModelRunner._compute"}
EVENTS = {"call", "return", "c_call"}
FAULT = "there is no such kernel"
ERRORS = (RuntimeError, MemoryError, torch.OutOfMemoryError, KeyError, OSError)


def schedule(**values: Any) -> ScheduleConfig:
    return ScheduleConfig(
        template_type="Mix",
        cache_block_size=BLOCK_SIZE,
        max_batch_size=8,
        max_preempt_count=1,
        split_fuse=SplitFuseConfig(split_chunk_tokens=48, split_start_batch_size=0),
        **values,
    )


SCHEDULES = {
    "in turn": schedule(),
    "async": schedule(async_scheduling_enable=True),
}


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """Where a fault may be."""

    is_engine_thread: bool
    number: int
    """Events on this thread before it."""
    event: str
    name: str
    step: int
    copies: bool
    """True when the step moves blocks."""


@dataclass
class Faults:
    """Counts the events of the code that is watched, and raises at one of them."""

    at: FaultPoint | None = None
    error: type[Exception] = RuntimeError
    points: list[FaultPoint] = field(default_factory=list)
    has_raised: bool = False
    _local: threading.local = field(default_factory=threading.local)
    step: int = 0
    copies: bool = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if (
            self.has_raised
            or event not in EVENTS
            or not frame.f_code.co_filename.startswith(ENGINE)
        ):
            return
        name = frame.f_code.co_qualname
        local, is_engine_thread = self._local, threading.current_thread() is MAIN
        depth = getattr(local, "depth", 0)
        if not depth and name not in (COLLECTED if is_engine_thread else COMPUTED):
            return
        if event == "call":
            local.depth = depth + 1
        elif event == "return":
            local.depth = depth - 1
        if not _cannot_fail(frame, event, arg):
            self._count(is_engine_thread, event, _name(name, event, arg))

    def _count(self, is_engine_thread: bool, event: str, name: str) -> None:
        local = self._local
        number = local.number = getattr(local, "number", -1) + 1
        if self.at is None:
            point = FaultPoint(is_engine_thread, number, event, name, self.step, self.copies)
            self.points.append(point)
        elif (self.at.is_engine_thread, self.at.number) == (is_engine_thread, number):
            self.has_raised = True
            raise self.error(FAULT)


def _cannot_fail(frame: FrameType, event: str, arg: Any) -> bool:
    """Return True when nothing can fail there.

    A lock is released, or an expression comes and goes, which is also what is seen of one that is
    closed before its end.
    """
    if event == "c_call":
        return bool(arg.__name__ == "__exit__")
    return frame.f_code.co_name == "<genexpr>"


def _name(caller: str, event: str, called: Any) -> str:
    return f"{caller}: {called.__name__}" if event == "c_call" else caller


MAIN = threading.main_thread()


@contextmanager
def injected(faults: Faults) -> Iterator[None]:
    before = sys.getprofile()
    threading.setprofile(faults)
    sys.setprofile(faults)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "logprobs": 1},
    {"temperature": 1.2, "top_p": 0.9},
    {"temperature": 0.8, "repetition_penalty": 1.2, "logit_bias": {7: 2.0}},
]


def crowd() -> list[Request]:
    prompts = [
        range(40),
        range(60, 110),
        [*range(100, 132), 3, 4],
        [*range(100, 132), 9],
        range(30, 47),
        range(200, 264),
    ]
    return [
        request(f"r{at}", tuple(prompt), at, n=3 if at == 4 else 1, **sampling)
        for at, (prompt, sampling) in enumerate(zip(prompts, cycle(SAMPLINGS), strict=False))
    ]


def request(name: str, prompt: tuple[int, ...], seed: int, *, n: int, **sampling: Any) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=NUM_OUTPUT, n=n, **sampling),
        max_new_tokens=NUM_OUTPUT,
        seeds=tuple(range(seed, seed + n)),
        sequence_ids=tuple(f"{name}.{at}" for at in range(n)) if n > 1 else (),
        arrived=seed / 1e3,
    )


@dataclass
class Outcome:
    """Result of a run."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    num_failing: int = 0
    """Steps in which a sequence failed."""


def run(engine: Engine, faults: Faults | None) -> Outcome:
    """Answer the crowd."""
    outcome, now, steps = Outcome(), 0.0, 0
    for one in crowd():
        engine.add(one)
    while engine.has_work:
        steps += 1
        assert steps < 2000, "no sequence moves on"
        if faults is not None:
            faults.step = steps
        progress = engine.step(partial(float, now))
        now = max(now + 1e-3, engine.wake_at if not progress.step.sequence_ids else 0.0)
        engine.check_integrity()
        outcome.failed |= progress.failed
        outcome.num_failing += bool(progress.failed)
        with_it = {*progress.step.sequence_ids, *progress.step.moved}
        assert all(
            one in with_it or one[:2] in {each[:2] for each in with_it} for one in progress.failed
        )
        for advance in progress.advances:
            said = outcome.tokens.setdefault(advance.sequence_id, [])
            said += [token.token_id for token in advance.tokens]
    return outcome


def engine_of(decoder: Decoder, desired: ScheduleConfig) -> Engine:
    config = EngineConfig(model_path="", schedule=desired, num_host_blocks=NUM_HOST_BLOCKS)
    capacity = Capacity(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_seq_len=128)
    runtime = open_device("cpu")
    return engine_of_one_rank(config, decoder, capacity, runtime, num_host_blocks=NUM_HOST_BLOCKS)


def watch(engine: Engine, faults: Faults) -> None:
    """Let points know whether their step moves blocks."""
    runner: Any = engine._runner
    for name in ("run", "submit"):
        compute = getattr(runner, name)

        def noted(step: Any, compute: Callable[[Any], Any] = compute) -> Any:
            faults.copies = bool(step.moved or step.copied or step.swapped_in)
            return compute(step)

        setattr(runner, name, noted)


def answer(decoder: Decoder, desired: ScheduleConfig, faults: Faults) -> Outcome:
    """One run, with what it leaves behind."""
    engine = engine_of(decoder, desired)
    watch(engine, faults)
    with injected(faults):
        outcome = run(engine, faults)
    engine.close()
    stats = engine.stats()
    assert stats.num_free_kv_blocks == stats.num_kv_blocks
    assert stats.num_free_host_blocks == stats.num_host_blocks
    assert not engine._runner._rows.by_id  # type: ignore[attr-defined]
    return outcome


def chosen(points: list[FaultPoint], each: int) -> list[FaultPoint]:
    """Of each thread, function and event: the first ones, with and without copies, and the last."""
    kinds: dict[tuple[Any, ...], list[FaultPoint]] = {}
    for point in points:
        kind = (point.is_engine_thread, point.event, point.name, point.copies)
        kinds.setdefault(kind, []).append(point)
    return [
        point
        for of_kind in kinds.values()
        for point in dict.fromkeys((*of_kind[:each], of_kind[-1]))
    ]


@pytest.fixture(scope="module")
def decoder(make_checkpoint: Callable[..., Path]) -> Decoder:
    return load_decoder(make_checkpoint("Qwen3ForCausalLM"), runtime=open_device("cpu"))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_crowd_loses_blocks_shares_them_and_forks(decoder: Decoder, name: str) -> None:
    faults = Faults()
    engine = engine_of(decoder, SCHEDULES[name])
    watch(engine, faults)
    with injected(faults):
        outcome = run(engine, faults)
    engine.close()
    stats = engine.stats()

    assert not outcome.failed
    assert len(outcome.tokens) == 8
    assert stats.num_swaps > 0
    assert stats.num_preemptions > stats.num_swaps
    assert stats.num_hit_tokens > 0
    assert any(point.copies for point in faults.points)
    assert any(not point.is_engine_thread for point in faults.points) == (name == "async")


@pytest.mark.parametrize(("stride", "each"), [(61, 1), pytest.param(1, 4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_fault_anywhere_fails_one_step_and_the_others_say_the_same(
    decoder: Decoder, name: str, stride: int, each: int
) -> None:
    counted = Faults()
    expected = answer(decoder, SCHEDULES[name], counted).tokens
    points = chosen(counted.points, each)[::stride]
    num_survivors = 0
    for point, error in zip(points, cycle(ERRORS), strict=False):
        faults = Faults(point, error)
        outcome = answer(decoder, SCHEDULES[name], faults)

        assert all(FAULT in cause for cause in outcome.failed.values()), (point, outcome.failed)
        assert outcome.num_failing <= 1, point
        for each_one in expected.keys() - outcome.failed.keys():
            assert outcome.tokens[each_one] == expected[each_one], (point, each_one, outcome.failed)
            num_survivors += 1
    assert num_survivors > len(points)
    print(f"{name}: {len(counted.points)} points, {len(points)} faults, {num_survivors} survivors")  # noqa: T201
