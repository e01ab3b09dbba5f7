"""Steps handed to other ranks: the batch there is that of rank 0, for any schedule."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.request import Request
from tandem_engine.api.step import Step
from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.host_memory import HostInts
from tandem_engine.engine import Engine
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.pending_logits import Computed
from tandem_engine.runner.rank_batches import RankBatches, columns_of
from tandem_engine.runner.rank_messages import StepEncoder
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.sampling.top_logits import TopLogits
from tandem_engine.scheduler.scheduler import Scheduler
from tests.unit.engine.scheduling import BLOCK_SIZE, drafts_of, request, standard, tokens
from tests.unit.engine.test_scheduler_properties import schedules

RUNTIME = CpuRuntime(memory_bytes=1 << 30)
VOCAB = 24
HEADER_BYTES = 40
CPU = torch.device("cpu")


def assert_same(got: AttentionMetadata, expected: AttentionMetadata) -> None:
    """Equal in all that a kernel reads, types included."""
    for each in fields(AttentionMetadata):
        ours, theirs = getattr(got, each.name), getattr(expected, each.name)
        assert type(ours) is type(theirs), each.name
        if isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype, each.name
            np.testing.assert_array_equal(ours, theirs, err_msg=each.name)
        else:
            assert ours == theirs, each.name


@dataclass
class HandingExecutor:
    """Hands each step to a rank, compares what it gets, and makes up logits.

    Attributes:
        raises: "before" or "after" the next batch is handed on; "": not at all.
        spoils: True if the next batch has a row without finite logits.
        hands_tokens: True: what was sampled goes from device to device.
    """

    vocab_size: int = VOCAB
    num_stages: int = 1
    heeds_num_top: bool = True
    raises: str = ""
    spoils: bool = False
    hands_tokens: bool = False
    encoder: StepEncoder = field(default_factory=StepEncoder)
    rank: RankBatches = field(
        default_factory=lambda: RankBatches(block_size=BLOCK_SIZE, device=CPU)
    )
    wrong: list[AssertionError] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0

    def remove(self, sequence_ids: Sequence[str]) -> None:
        self.encoder.remove(sequence_ids)

    def copy(self, step: Step) -> None:
        message = self.encoder.copies(step)
        self.kinds["swapped_out"] += len(step.swapped_out)
        self.kinds["swapped_in"] += len(step.swapped_in)
        if message is not None:
            self.check(lambda: _check_copies(self.rank.decode(message), step))

    def begin(self, batch: FlatBatch) -> Computed:
        return Computed(self.forward(batch))

    def reading(self) -> AbstractContextManager[None]:
        return nullcontext()

    def forward(self, batch: FlatBatch) -> Tensor:
        raises, self.raises = self.raises, ""
        if raises == "before":
            raise RuntimeError("no such kernel")
        message = self.encoder.batch(columns_of(batch, hands_tokens=self.hands_tokens))
        self.num_bytes = len(message)
        self.check(lambda: self._check_batch(self.rank.decode(message), batch))
        if raises == "after":
            raise RuntimeError("no such kernel")
        generator = torch.Generator().manual_seed(sum(self.kinds.values()))
        logits = torch.randn((len(batch.yield_at), VOCAB), generator=generator)
        if batch.scoring is not None:
            batch.scoring.scores.zero_()
        if self.spoils and len(logits):
            logits[0] = torch.nan
            self.spoils = False
        return TopLogits(batch.num_top).reduce(logits, 0) if batch.num_top else logits

    def check(self, comparison: Callable[[], None]) -> None:
        """Keep what is wrong: the runner takes an exception for a step that failed."""
        try:
            comparison()
        except AssertionError as error:
            self.wrong.append(error)

    def _check_batch(self, got: Step | FlatBatch, batch: FlatBatch) -> None:
        assert isinstance(got, FlatBatch)
        assert_same(got.attention, batch.attention)
        laid_out = build_attention_metadata(
            query_lens=np.diff(batch.attention.row_starts).tolist(),
            context_lens=batch.attention.context_lens.tolist(),
            block_tables=batch.block_tables,
            block_size=BLOCK_SIZE,
            device=CPU,
        )
        assert_same(batch.attention, laid_out)
        assert got.token_ids.dtype == batch.token_ids.dtype
        self._check_tokens(got, batch)
        assert_same_ints(got.yield_at, batch.yield_at)
        assert got.num_top == batch.num_top
        if batch.scoring is None:
            assert got.scoring is None
        else:
            assert got.scoring is not None
            assert_same_ints(got.scoring.at, batch.scoring.at)
            assert_same_ints(got.scoring.token_ids, batch.scoring.token_ids)
            assert got.scoring.scores.shape == batch.scoring.scores.shape
        self.kinds["batches"] += 1
        self.kinds["scored"] += batch.scoring is not None
        self.kinds["fed"] += batch.fed is not None
        self.kinds["drafts"] += bool(batch.drafts)

    def _check_tokens(self, got: FlatBatch, batch: FlatBatch) -> None:
        if got.sampled is not None:
            assert self.hands_tokens
            assert batch.sampled is not None
            self.kinds["handed"] += 1
            got.feed_in(got.sampled.copy_(batch.sampled))
        if batch.fed is None or batch.sampled is not None:
            assert torch.equal(got.token_ids, batch.token_ids)
        else:
            # The step before has failed, and with it the rows that wait: any token does.
            assert got.token_ids.shape == batch.token_ids.shape


def assert_same_ints(got: HostInts, expected: HostInts) -> None:
    assert got.tensor.dtype == expected.tensor.dtype == torch.int64
    assert got.array.tolist() == got.tensor.tolist() == expected.array.tolist()


def _check_copies(got: Step | FlatBatch, step: Step) -> None:
    assert isinstance(got, Step)
    assert got == Step(
        swapped_out=list(step.swapped_out),
        swapped_in=list(step.swapped_in),
        copied=list(step.copied),
    )


class Guesses:
    """A drafter that is sometimes right."""

    def propose(self, _: str, request: Request, output: Sequence[int], count: int) -> Sequence[int]:
        return [token % VOCAB for token in [*request.prompt_token_ids, *output][-count:]]

    def forget(self, *_: object) -> None:
        pass


class Handing:
    """A real scheduler and runner whose steps are handed on."""

    def __init__(
        self,
        schedule: ScheduleConfig,
        *,
        blocks: int,
        host: int = 0,
        drafts: int = 0,
        hands_tokens: bool = False,
    ) -> None:
        self.executor = HandingExecutor(hands_tokens=hands_tokens)
        self.pool = BlockPool(blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(
            schedule, self.pool, host=HostPool(host), speculation=drafts_of(drafts)
        )
        self.runner = ModelRunner(
            self.executor, runtime=RUNTIME, block_size=BLOCK_SIZE, drafter=Guesses()
        )
        self.engine = Engine(self.scheduler, self.runner)
        self.now = 0.0

    def add(self, each: Request) -> None:
        if self.engine.can_ever_hold(each):
            self.engine.add(each)

    def step(self) -> None:
        self.now = max(self.now + 0.25, min(self.engine.wake_at, self.now + 10))
        self.engine.step(lambda: self.now)

    def finish(self) -> None:
        for _ in range(2000):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work
        # Those that ended with the last step are handed on with the next one.
        self.runner.run(Step())
        self.engine.close()
        if self.executor.wrong:
            raise self.executor.wrong[0]
        assert self.executor.encoder.num_sequences == 0


SAMPLING: list[dict[str, Any]] = [
    {},
    {},
    {"temperature": 0.0},
    {"n": 3},
    {"use_beam_search": True, "n": 3, "temperature": 0.0},
    {"stop_token_ids": (1, 2, 3)},
    {"repetition_penalty": 1.5, "logprobs": 2},
    {"prompt_logprobs": 2},
]


class Traffic:
    """Requests that come, end, leave and fail by chance, under live changes."""

    def __init__(self, handing: Handing, rng: Random, changes: Sequence[ScheduleConfig]) -> None:
        self.handing = handing
        self.rng = rng
        self.changes = changes
        self.names: list[str] = []

    def run(self, num_events: int) -> None:
        """Let so many things happen, then serve all that is left."""
        events = [self.add] * 12 + [self.step] * 10 + [self.abort, self.fail, self.reconfigure]
        for _ in range(num_events):
            self.rng.choice(events)()
        self.handing.finish()

    def add(self) -> None:
        """Add a request, perhaps with the name of one that is over."""
        rng, handing = self.rng, self.handing
        length = rng.choice([rng.randint(1, 90), rng.randint(1, 20), 2 * BLOCK_SIZE])
        each = request(
            f"r{rng.randrange(30)}.",
            length,
            rng.choice([1, rng.randint(1, 60)]),
            prompt=tuple(token % VOCAB for token in tokens(rng.choice("abc"), length)),
            arrived=handing.now,
            **rng.choice(SAMPLING),
        )
        used = [name for name in self.names if name.startswith(each.request_id)]
        if not any(handing.scheduler._queues.find(name) for name in (*used, *each.sequences)):
            handing.add(each)
            self.names += each.sequences

    def step(self) -> None:
        """Compute some steps."""
        for _ in range(self.rng.randint(1, 6)):
            self.handing.step()

    def abort(self) -> None:
        """Let a client leave."""
        if self.names:
            self.handing.engine.abort(self.rng.choice(self.names))

    def fail(self) -> None:
        """Spoil a row of the next batch, or let it fail before or after it is handed on."""
        executor = self.handing.executor
        executor.spoils = self.rng.random() < 0.5
        executor.raises = "" if executor.spoils else self.rng.choice(["before", "after"])

    def reconfigure(self) -> None:
        """Make a live change."""
        self.handing.engine.reconfigure(self.rng.choice(self.changes))


# Not shrunk: the traffic is by chance, so a smaller seed is no smaller case. An example takes up to
# a second: 10 of the same, 40 drawn ones.
@settings(
    max_examples=settings().max_examples // 5,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(
    changes=st.lists(schedules(), min_size=1, max_size=3),
    blocks=st.integers(6, 16),
    host=st.sampled_from([0, 3, 16]),
    drafts=st.sampled_from([0, 0, 0, 3]),
    hands_tokens=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_rank_gets_the_batches_of_rank_0(
    changes: list[ScheduleConfig],
    blocks: int,
    host: int,
    drafts: int,
    hands_tokens: bool,
    seed: int,
) -> None:
    handing = Handing(
        changes[0], blocks=blocks, host=host, drafts=drafts, hands_tokens=hands_tokens
    )

    Traffic(handing, Random(seed), changes).run(60)


@pytest.mark.parametrize(
    ("schedule", "given", "kind"),
    [
        ({"max_preempt_count": 8, "max_batch_size": 8}, {"blocks": 20, "host": 32}, "swapped_in"),
        ({"max_preempt_count": 8, "max_batch_size": 8}, {"blocks": 20, "host": 32}, "swapped_out"),
        ({"async_scheduling_enable": True}, {"blocks": 256}, "fed"),
        ({"async_scheduling_enable": True}, {"blocks": 256, "hands_tokens": True}, "handed"),
        ({}, {"blocks": 256, "drafts": 3}, "drafts"),
        ({"max_prefill_tokens": 16}, {"blocks": 256}, "scored"),
    ],
)
def test_a_rank_gets_the_batches_of_busy_schedules(
    schedule: dict[str, Any], given: dict[str, Any], kind: str
) -> None:
    handing = Handing(standard(**schedule), **given)
    for number in range(12):
        prompt = tuple(range(number, 12)) * 4
        scores: dict[str, Any] = (
            {"prompt_logprobs": number % 3} if kind == "scored" and number % 2 else {}
        )
        handing.add(request(f"r{number}", 0, 50, prompt=prompt, temperature=0.0, **scores))

    handing.finish()

    assert handing.executor.kinds[kind]


def test_between_stages_all_tokens_are_in_the_message() -> None:
    handing = Handing(standard(), blocks=256, hands_tokens=True)
    handing.executor.num_stages = 2
    for number in range(4):
        handing.add(request(f"r{number}", 0, 20, prompt=(1,) * 9, temperature=0.0))

    handing.finish()

    assert handing.executor.kinds["batches"] > 10
    assert not handing.executor.kinds["fed"]
    assert not handing.executor.kinds["handed"]


def test_rows_that_go_on_cost_four_bytes_each() -> None:
    handing = Handing(standard(max_batch_size=64), blocks=64 * 8)
    for number in range(64):
        handing.add(request(f"r{number}", 0, 20, prompt=(1,) * 33, temperature=0.0))
    sizes: list[int] = []
    while handing.engine.has_work:
        handing.step()
        sizes.append(handing.executor.num_bytes)

    # Prompt and first token are sent in other forms; no row begins a block until token 48.
    assert sizes[-12:-8] == [HEADER_BYTES + 64 * 4] * 4
