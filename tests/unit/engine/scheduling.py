"""Helpers of the scheduler's tests: requests, schedules, and an engine in virtual time."""

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import LOWEST_PRIORITY, Request, SamplingParams
from tandem_engine.api.slo import Slo
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.api.step import Step
from tandem_engine.engine import Engine, Progress
from tandem_engine.kvcache.host import HostPool, dp_host_pools
from tandem_engine.kvcache.pool import BlockPool, dp_pools
from tandem_engine.scheduler.records.records import StepRecord
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.testing import CountingRunner

BLOCK_SIZE = 16
STEP_S = 0.25
"""Seconds of a step where a test does not say otherwise; a fraction that floats can hold."""


def tokens(of: str, count: int) -> tuple[int, ...]:
    """A prompt; equal names give equal beginnings, other names share no block."""
    return tuple(crc32(f"{of} {at}".encode()) % 997 for at in range(count))


def request(
    name: str,
    num_prompt: int,
    num_output: int = 8,
    *,
    prompt: tuple[int, ...] = (),
    arrived: float = 0.0,
    priority: int = LOWEST_PRIORITY,
    salt: str = "",
    **sampling: Any,
) -> Request:
    """A request, its choices or beams called name0, name1, … where there are several.

    Args:
        name: Its id, and what its prompt is made from.
        num_prompt: Tokens of the prompt; of no effect where `prompt` is given.
        num_output: Output tokens at most, and exactly so many unless a stop id comes before.
        prompt: The prompt, where requests are to share a beginning.
        arrived: Seconds.
        priority: 1 … 5.
        salt: `cache_salt`.
        sampling: Of SamplingParams.
    """
    params = SamplingParams(max_tokens=num_output, **sampling)
    count = params.num_sequences
    return Request(
        request_id=name,
        prompt_token_ids=prompt or tokens(name, num_prompt),
        sampling=params,
        max_new_tokens=num_output,
        stop_token_ids=frozenset(params.stop_token_ids),
        seeds=tuple(range(count)),
        sequence_ids=tuple(f"{name}{at}" for at in range(count)) if count > 1 else (),
        priority=priority,
        cache_salt=salt,
        arrived=arrived,
    )


def standard(**settings: Any) -> ScheduleConfig:
    """A schedule of templateType Standard."""
    return ScheduleConfig(cache_block_size=BLOCK_SIZE, **settings)


def mix(chunk: int = 32, start: int = 0, *, schedule: Any = None, **split: Any) -> ScheduleConfig:
    """A schedule of templateType Mix, which cuts from the first row on.

    Args:
        chunk: splitChunkTokens.
        start: splitStartBatchSize.
        schedule: Further settings of ScheduleConfig, as a dict.
        split: Further settings of SplitFuseConfig.
    """
    return ScheduleConfig(
        template_type="Mix",
        cache_block_size=BLOCK_SIZE,
        split_fuse=SplitFuseConfig(split_chunk_tokens=chunk, split_start_batch_size=start, **split),
        **(schedule or {}),
    )


def drafts_of(most: int) -> SpeculationConfig:
    """Return the settings of so many drafts, wherever there are guesses; 0: of none."""
    return SpeculationConfig(method="ngram", max_draft_tokens=most) if most else SpeculationConfig()


class Bench:
    """An engine whose time is a number: a step takes as long as the test says.

    Blocks are those of each of its `dp` ranks.

    Attributes:
        now: Seconds.
        said: Sequence id → the tokens that it got so far.
        reasons: Sequence id → why it ended.
    """

    def __init__(
        self,
        schedule: ScheduleConfig,
        *requests: Request,
        num_blocks: int = 64,
        num_host_blocks: int = 0,
        max_drafts: int = 0,
        num_stages: int = 1,
        slo: Slo | None = None,
        runner: CountingRunner | None = None,
        dp: int = 1,
    ) -> None:
        self.pools = dp_pools(dp, num_blocks, BLOCK_SIZE)
        self.hosts = dp_host_pools(dp, num_host_blocks)
        self.scheduler = Scheduler(
            schedule,
            self.pools,
            host=self.hosts,
            slo=slo,
            speculation=drafts_of(max_drafts),
            num_stages=num_stages,
        )
        self.engine = Engine(self.scheduler, runner or CountingRunner(block_size=BLOCK_SIZE))
        self.now = 0.0
        self.said: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.add(*requests)

    def add(self, *requests: Request) -> None:
        """Let requests wait."""
        for each in requests:
            self.engine.add(each)

    def step(self, seconds: float = STEP_S) -> Progress:
        """One step that takes so many seconds; the blocks are counted after it."""
        moments = iter((self.now, self.now + seconds))
        progress = self.engine.step(lambda: next(moments))
        self.now += seconds
        self.scheduler.check_integrity()
        for advance in progress.advances:
            said = self.said.setdefault(advance.sequence_id, [])
            said += [token.token_id for token in advance.tokens]
            if advance.finish_reason is not None:
                self.reasons[advance.sequence_id] = advance.finish_reason
        return progress

    def run(self, count: int, seconds: float = STEP_S) -> list[dict[str, int]]:
        """So many steps: the tokens of each sequence, in the order of the rows."""
        return [rows(self.step(seconds)) for _ in range(count)]

    def finish(self, most_steps: int = 2000) -> list[dict[str, int]]:
        """Step until none is left; time goes to `wake_at` where a step is empty."""
        made: list[dict[str, int]] = []
        for _ in range(most_steps):
            if not self.engine.has_work:
                return made
            made.append(rows(self.step()))
            if not made[-1]:
                self.now = max(self.now, self.engine.wake_at)
        raise AssertionError(f"There is work left after {most_steps} steps: {made[-5:]}")

    @property
    def record(self) -> StepRecord:
        """Return the last step with its reasons."""
        last = self.engine.records.last
        assert last is not None
        return last

    @property
    def is_empty(self) -> bool:
        """True if none is left and all blocks were given back."""
        is_over = not self.engine.has_work
        return is_over and not any(pool.num_held for pool in (*self.pools, *self.hosts))

    @property
    def pool(self) -> BlockPool:
        """The blocks of the first dp rank."""
        return self.pools[0]

    @property
    def host(self) -> HostPool:
        """The host blocks of the first dp rank."""
        return self.hosts[0]


def rows(progress: Progress) -> dict[str, int]:
    """Sequence id → tokens of a step."""
    step = progress.step
    return dict(zip(step.sequence_ids, step.num_tokens, strict=True))


def counting(ids: Iterable[str], num_output: int) -> dict[str, list[int]]:
    """Return the tokens of sequences under the counting runner when they get all of them."""
    return {each: list(range(num_output)) for each in ids}


def check_dp_ranks(bench: Bench, step: Step, request_of: Mapping[str, Request]) -> None:
    """Raise AssertionError unless a row, a copy and a request have blocks of one dp rank."""
    homes: dict[str, int] = {}
    for each, table in zip(step.sequence_ids, step.block_tables, strict=True):
        (home,) = {block // bench.pool.num_blocks for block in table}
        assert homes.setdefault(request_of[each].request_id, home) == home
    for copies, source, target in (
        (step.swapped_out, bench.pool, bench.host),
        (step.swapped_in, bench.host, bench.pool),
        (step.copied, bench.pool, bench.pool),
    ):
        for copy in copies:
            assert copy.source // source.num_blocks == copy.target // target.num_blocks
