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
from tandem_engine.api.step import BlockCopy, Step
from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.host_memory import HostInts
from tandem_engine.engine import Engine
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.runner.batch import ALL_FED, Feed, FlatBatch
from tandem_engine.runner.executor import Computed
from tandem_engine.runner.rank_batches import RankBatches, columns_of
from tandem_engine.runner.rank_messages import BadMessage, StepDecoder, StepEncoder
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


def test_tokens_that_devices_hand_on_cost_no_bytes() -> None:
    pair = Pair()
    rows = {f"r{number}": (1, 5, (number, 64 + number)) for number in range(64)}
    pair.hand(**rows)
    batch = batch_of({name: (1, 6, table) for name, (_, _, table) in rows.items()})
    batch.host_token_ids, batch.fed = batch.token_ids.numpy(), ALL_FED
    batch.feed_in(torch.arange(64))

    message = pair.encoder.batch(columns_of(batch, hands_tokens=True))

    # Their number.
    assert len(message) == HEADER_BYTES + 4
    got = pair.rank.decode(message)
    assert isinstance(got, FlatBatch)
    assert got.sampled is not None
    assert got.sampled.shape == (64,)
    got.feed_in(batch.sampled)
    assert got.token_ids.tolist() == [*range(64)]


def test_some_tokens_are_handed_on_beside_others() -> None:
    pair = Pair()
    batch = batch_of({"a": (1, 5, (50, 60)), "b": (3, 3, (51,)), "c": (1, 9, (52, 62, 72))})
    batch.token_ids = torch.tensor([0, 7, 8, 9, 0])
    batch.host_token_ids = batch.token_ids.numpy().copy()
    batch.fed = Feed(HostInts.of([0, 4], CPU), HostInts.of([2, 0], CPU))
    batch.feed_in(torch.tensor([11, 12, 13]))

    got = pair.rank.decode(pair.encoder.batch(columns_of(batch, hands_tokens=True)))

    assert isinstance(got, FlatBatch)
    assert got.token_ids.tolist() == [0, 7, 8, 9, 0]
    assert got.sampled is not None
    assert got.sampled.shape == (3,)
    got.feed_in(batch.sampled)
    assert got.token_ids.tolist() == batch.token_ids.tolist() == [13, 7, 8, 9, 11]


def test_tokens_of_a_step_that_failed_are_not_handed_on() -> None:
    pair = Pair()
    batch = batch_of({"a": (1, 5, (50, 60))})
    batch.host_token_ids, batch.fed = batch.token_ids.numpy(), ALL_FED
    batch.feed_in(None)

    got = pair.rank.decode(pair.encoder.batch(columns_of(batch, hands_tokens=True)))

    assert isinstance(got, FlatBatch)
    assert got.sampled is None
    assert got.fed is None


# Messages by hand


def batch_of(rows: dict[str, tuple[int, int, tuple[int, ...]]]) -> FlatBatch:
    """A batch of rows that yield: name → tokens, context, block table."""
    lengths = [length for length, _, _ in rows.values()]
    tables = [table for _, _, table in rows.values()]
    return FlatBatch(
        token_ids=torch.arange(sum(lengths)),
        attention=build_attention_metadata(
            query_lens=lengths,
            context_lens=[context for _, context, _ in rows.values()],
            block_tables=tables,
            block_size=4,
            device=CPU,
        ),
        yield_at=HostInts(np.cumsum(lengths) - 1, CPU),
        yielding=(),
        drafts={},
        sequence_ids=list(rows),
        block_tables=tables,
    )


class Pair:
    """An encoder and a rank."""

    def __init__(self) -> None:
        self.encoder = StepEncoder()
        self.rank = RankBatches(block_size=4, device=CPU)

    def hand(self, **rows: tuple[int, int, tuple[int, ...]]) -> list[int]:
        """Hand a batch on, compare, and return the numbers of the message behind its header."""
        batch = batch_of(rows)
        message = self.encoder.batch(columns_of(batch))
        got = self.rank.decode(message)
        assert isinstance(got, FlatBatch)
        assert_same(got.attention, batch.attention)
        assert got.token_ids.tolist() == batch.token_ids.tolist()
        assert got.yield_at.array.tolist() == batch.yield_at.array.tolist()
        numbers: list[int] = np.frombuffer(message, dtype=np.int32)[HEADER_BYTES // 4 :].tolist()
        return numbers


def test_of_a_table_what_is_new_is_sent() -> None:
    pair = Pair()

    # Table, tokens, context, yielding position; the table, its kept and new blocks; tokens.
    assert pair.hand(a=(1, 5, (50, 60))) == [0, 1, 5, 0, *(0, 0, 2, 50, 60), 0]
    assert pair.hand(a=(1, 6, (50, 60))) == [0]
    assert pair.hand(a=(1, 7, (50, 60, 70))) == [*(0, 2, 1, 70), 0]
    # A block of its own in place of a shared one: the rows do not simply go on.
    assert pair.hand(a=(1, 8, (50, 61, 70))) == [0, 1, 8, 0, *(0, 0, 3, 50, 61, 70), 0]
    # Blocks that were taken back, and others that came later.
    assert pair.hand(a=(1, 4, (50,))) == [0, 1, 4, 0, *(0, 1, 0), 0]
    assert pair.hand(a=(1, 5, (50, 80))) == [*(0, 1, 1, 80), 0]


def test_a_table_id_goes_to_the_next_sequence() -> None:
    pair = Pair()
    pair.hand(a=(1, 5, (50, 60)), b=(1, 9, (51, 61, 71)))
    pair.encoder.remove(["a", "unknown"])

    assert pair.hand(c=(1, 2, (62,)), b=(1, 10, (51, 61, 71)))[:2] == [0, 1]
    pair.encoder.remove(["b", "c"])
    assert pair.encoder.num_sequences == 0


def test_a_sequence_that_comes_again_does_not_go_on() -> None:
    pair = Pair()
    pair.hand(a=(1, 5, (50, 60)))
    pair.encoder.remove(["a"])

    pair.hand(a=(1, 6, (51, 61)))


def test_rows_that_go_on_elsewhere_are_sent_whole() -> None:
    pair = Pair()
    batches: list[dict[str, tuple[int, int, tuple[int, ...]]]] = [
        {"a": (1, 5, (50, 60)), "b": (1, 5, (51, 61))},
        {"b": (1, 6, (51, 61)), "a": (1, 6, (50, 60))},
        {"b": (1, 8, (51, 61)), "a": (1, 8, (50, 60))},
        {"a": (1, 9, (50, 60, 70)), "b": (2, 8, (51, 61))},
        {"a": (1, 10, (50, 60, 70)), "b": (1, 9, (51, 61, 71))},
    ]
    for rows in batches:
        # More than the tokens.
        assert len(pair.hand(**rows)) > 3


def test_tables_grow_to_any_size() -> None:
    pair = Pair()
    for number in range(200):
        pair.hand(**{f"r{number}": (1, 5, (number, 7))})
    table = tuple(range(3000))

    pair.hand(r7=(1, 12_000, table), r199=(1, 4, (199,)), r3=(1, 6, (3, 7)))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda message: message[:-4], "numbers"),
        (lambda message: message + bytes(4), "numbers"),
        (lambda message: message[:-1], "bytes"),
        (lambda message: message[:8], "numbers"),
        (lambda message: bytes([9]) + message[1:], "kind 9"),
        (lambda message: message[:4] + bytes([1]) + message[5:], "message 0 was due"),
    ],
)
def test_a_wrong_message_is_refused(spoil: Callable[[bytes], bytes], text: str) -> None:
    message = StepEncoder().batch(columns_of(batch_of({"a": (1, 5, (50, 60))})))

    with pytest.raises(BadMessage, match=text):
        StepDecoder().decode(spoil(message))


def test_a_message_that_was_missed_is_noticed() -> None:
    pair = Pair()
    pair.hand(a=(1, 5, (50, 60)))
    pair.encoder.copies(Step(copied=[BlockCopy(1, 2)]))

    with pytest.raises(BadMessage, match="Message 2 of rank 0 came where message 1 was due"):
        pair.hand(a=(1, 6, (50, 60)))
