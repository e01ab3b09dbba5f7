"""tandem-tiny in an engine under a virtual clock, and the requests whose answers are compared.

The truth is each request alone in an engine without a prefix cache; test_tokens.py compares that
with transformers. All is float32.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle
from typing import Any, Final

from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.api.output import EngineStats, PromptLogprobs
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.slo import Slo
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.api.step import Step, StepResult
from tandem_engine.device.registry import open_device
from tandem_engine.engine import Engine
from tandem_engine.kvcache.capacity import Capacity
from tandem_engine.kvcache.host import dp_host_pools
from tandem_engine.kvcache.pool import dp_pools
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.draft import DraftPart
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.runner.drafts import Drafter
from tandem_engine.runner.executor import Executor
from tandem_engine.runner.loaded_draft import LoadedDraft
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.sampling.counter_rng import derive_seed
from tandem_engine.scheduler.records.records import StepRecord
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.text.codec import load_codec
from tests.integration.one_rank import engine_of_one_rank
from tests.tiny import TINY, held_out
from tests.unit.engine.scheduling import drafts_of

BLOCK_SIZE: Final = 16
MAX_SEQ_LEN: Final = 512
ROOMY: Final = 256
# The longest request takes 23 blocks: a few run at once, and not all of them can grow to their end.
SCARCE: Final = 36
HOST_BLOCKS: Final = 64
NUM_OUTPUT: Final = 20
MAX_DRAFTS: Final = 3
# After its answer the model repeats the end token for ever, which would say little of its context.
END: Final = 260

Tokens = tuple[int, ...]

# Greedy, and everything that draws: each request is one of these.
SAMPLINGS: Final[tuple[dict[str, Any], ...]] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.4, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.5, "min_p": 0.01},
)


def standard(strategy: Any, **values: Any) -> ScheduleConfig:
    return ScheduleConfig(strategy=strategy, cache_block_size=BLOCK_SIZE, **values)


def mixed(chunk: int, *, split: dict[str, Any] | None = None, **values: Any) -> ScheduleConfig:
    fuse = {"split_chunk_tokens": chunk, "split_start_batch_size": 0, **(split or {})}
    return ScheduleConfig(
        template_type="Mix",
        cache_block_size=BLOCK_SIZE,
        split_fuse=SplitFuseConfig(**fuse),
        **values,
    )


SCHEDULES: Final = {
    "static": standard("static", max_batch_size=8),
    "dynamic": standard("dynamic", max_batch_size=8),
    "continuous": standard("continuous"),
    "continuous, small prefills": standard("continuous", max_prefill_tokens=300),
    "continuous, throughput first": standard("continuous", stage_select_policy=1),
    "continuous, least laxity first": standard("continuous", stage_select_policy=2),
    "continuous, MLFQ": standard("continuous", prefill_policy_type=3, decode_policy_type=3),
    "chunked, 48 tokens": standard("chunked", max_prefill_tokens=48),
    "chunked, 256 tokens": standard("chunked", max_prefill_tokens=256),
    "splitfuse, 16 tokens": mixed(16),
    "splitfuse, 48 tokens": mixed(48),
    "splitfuse, 256 tokens": mixed(256),
    "splitfuse, chunks of 32": mixed(256, split={"prefill_chunk_size": 32}),
    "splitfuse, short prompts whole": mixed(64, split={"split_type": True}),
    "splitfuse, whole until 6 run": mixed(48, split={"split_start_batch_size": 6}),
    "splitfuse, shortest first": mixed(64, split={"policy_type": 4}),
    "splitfuse, skip-join MLFQ": mixed(64, split={"policy_type": 6}),
}


PLAIN: Final = ("static", "continuous", "chunked, 48 tokens", "splitfuse, 48 tokens")


def with_async_scheduling(schedule: ScheduleConfig) -> ScheduleConfig:
    return schedule.model_copy(update={"async_scheduling_enable": True})


def without_cache(schedule: ScheduleConfig) -> ScheduleConfig:
    return schedule.model_copy(update={"enable_prefix_cache": False})


@cache
def decoder() -> Decoder:
    return load_decoder(
        TINY, dtype="float32", runtime=open_device("cpu"), max_positions=MAX_SEQ_LEN
    )


@cache
def conversation(number: int, last: str | None = None) -> Tokens:
    """Token ids of a held-out conversation, perhaps with another last question."""
    messages = held_out(60)[number].messages
    if last is not None:
        messages = [*messages[:-1], {"role": "user", "content": last}]
    return tuple(load_codec(TINY).encode_chat(messages))


def request(name: str, prompt: Tokens, *, seed: int = 0, **sampling: Any) -> Request:
    """A request that runs on to its longest output."""
    usual = {"max_tokens": NUM_OUTPUT, "temperature": 0.0, "logprobs": 0}
    params = SamplingParams(**{**usual, "logit_bias": {END: -100.0}, **sampling})
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=params,
        max_new_tokens=params.max_tokens,
        seeds=(seed,),
    )


@cache
def crowd() -> tuple[Request, ...]:
    """Prompts of 1 to 400 tokens: some have a beginning in common, some are the same."""
    own = [conversation(number) for number in (3, 5, 14, 15, 24, 19)]
    alike = [conversation(13, f"Reverse: {word}") for word in ("abc", "abd", "xyz", "q")]
    long = conversation(20)
    edges = [long[:length] for length in (1, 15, 16, 17, 64, 64, 65, 128)]
    return tuple(
        request(f"r{number}", prompt, seed=number, **sampling)
        for number, (prompt, sampling) in enumerate(
            zip([*own, *alike, *edges, alike[0]], cycle(SAMPLINGS), strict=False)
        )
    )


def without_logprobs(requests: Iterable[Request]) -> list[Request]:
    """The same, greedy or drawn from the 20 likeliest tokens: ranks hand over few logits."""

    def plain(sampling: SamplingParams) -> SamplingParams:
        return replace(sampling, logprobs=None, logit_bias={}, top_k=20)

    return [replace(each, sampling=plain(each.sampling)) for each in requests]


def loaded_draft(draft: Decoder) -> LoadedDraft:
    """Return a draft model that costs a tenth of the model."""
    layout = draft.cache_layout(BLOCK_SIZE)
    part = DraftPart(path=TINY, config=draft.config, weights=0, layout=layout, token_price=0.1)
    return LoadedDraft(part=part, decoder=draft)


class VirtualClock:
    """Seconds that pass as steps cost them: 1 ms, and 50 µs a token."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def drives(self, engine: Engine) -> None:
        """Let the steps of an engine take their time."""
        runner: Any = engine._runner
        compute = runner.run

        def run(step: Step) -> StepResult:
            self.now += 1e-3 + 50e-6 * step.total_tokens
            result: StepResult = compute(step)
            return result

        runner.run = run
        begin = runner.submit

        def submit(step: Step) -> Any:
            self.now += 1e-3 + 50e-6 * step.total_tokens
            return begin(step)

        runner.submit = submit


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run."""

    tokens: dict[str, Tokens]
    """By sequence."""
    logprobs: dict[str, list[float]]
    """Of each token, from the logits as they are: what is computed wrong shows here first."""
    stats: EngineStats
    records: list[StepRecord]
    """The last steps."""
    num_computed: int
    """Tokens of all steps."""
    prompt_logprobs: dict[str, list[PromptLogprobs]] = field(default_factory=dict)
    """Parts of the prompt, by the sequence that computes it."""


class Bench:
    """An engine over tandem-tiny, driven to the end of its requests.

    Blocks are those of each dp rank of the executor; a drafter needs one. A draft model needs none.
    """

    def __init__(
        self,
        schedule: ScheduleConfig,
        *,
        num_blocks: int = ROOMY,
        num_host_blocks: int = 0,
        slo: Slo | None = None,
        executor: Executor | None = None,
        dp: int = 1,
        drafter: Drafter | None = None,
        speculation: SpeculationConfig | None = None,
        draft: Decoder | None = None,
    ) -> None:
        config = EngineConfig(
            model_path=str(TINY),
            schedule=schedule,
            speculation=speculation or SpeculationConfig(),
            num_host_blocks=num_host_blocks,
            slo=slo or Slo(),
        )
        capacity = Capacity(num_blocks=num_blocks, block_size=BLOCK_SIZE, max_seq_len=MAX_SEQ_LEN)
        runtime = open_device("cpu")
        if executor is None:
            self.engine = engine_of_one_rank(
                config,
                decoder(),
                capacity,
                runtime,
                num_host_blocks=num_host_blocks,
                draft=None if draft is None else loaded_draft(draft),
            )
        else:
            pools = dp_pools(dp, num_blocks, BLOCK_SIZE)
            hosts = dp_host_pools(dp, num_host_blocks)
            runner = ModelRunner(executor, runtime=runtime, block_size=BLOCK_SIZE, drafter=drafter)
            scheduler = Scheduler(
                schedule,
                pools,
                host=hosts,
                slo=config.slo,
                num_stages=executor.num_stages,
                speculation=drafts_of(0 if drafter is None else MAX_DRAFTS),
            )
            self.engine = Engine(scheduler, runner)
        self._clock = VirtualClock()
        self._clock.drives(self.engine)

    def run(self, requests: Sequence[Request], *, apart: int = 0) -> Outcome:
        """Answer requests, of which one more comes every `apart` steps; 0: all come at once."""
        coming = iter(requests)
        tokens: dict[str, Tokens] = {name: () for one in requests for name in one.sequences}
        logprobs: dict[str, list[float]] = {name: [] for name in tokens}
        prompt_logprobs: dict[str, list[PromptLogprobs]] = {}
        num_steps = num_computed = 0
        is_last = False
        while not is_last or self.engine.has_work:
            if not is_last and (not apart or num_steps % apart == 0):
                is_last = self._add(coming, None if not apart else 1)
            progress = self.engine.step(self._clock)
            assert not progress.failed
            self.engine.check_integrity()
            num_steps += 1
            num_computed += progress.step.total_tokens
            for name, part in progress.prompt_logprobs.items():
                prompt_logprobs.setdefault(name, []).append(part)
            for advance in progress.advances:
                tokens[advance.sequence_id] += tuple(token.token_id for token in advance.tokens)
                logprobs[advance.sequence_id] += [
                    token.logprob.logprob for token in advance.tokens if token.logprob is not None
                ]
            if not progress.step.sequence_ids:
                self._clock.now = max(self._clock.now + 1e-3, self._next_wake_up(is_last))
            assert num_steps < 20_000, "no request advances"
        self.engine.close()
        return Outcome(
            tokens=tokens,
            logprobs=logprobs,
            stats=self.engine.stats(),
            records=self.engine.records.since(0),
            num_computed=num_computed,
            prompt_logprobs=prompt_logprobs,
        )

    def _add(self, coming: Iterator[Request], count: int | None) -> bool:
        """Add so many, None for all; True when none is left."""
        while count is None or count > 0:
            one = next(coming, None)
            if one is None:
                return True
            self.engine.add(replace(one, arrived=self._clock.now))
            count = None if count is None else count - 1
        return False

    def _next_wake_up(self, is_last: bool) -> float:
        wake_at = self.engine.wake_at
        assert wake_at < float("inf") or not is_last, "the engine would never wake again"
        return wake_at if is_last else 0.0


def run(schedule: ScheduleConfig, requests: Sequence[Request], **settings: Any) -> Outcome:
    return Bench(schedule, **settings).run(requests)


def alone(requests: Sequence[Request]) -> Outcome:
    """Answers of requests one after the other, without a prefix cache."""
    bench = Bench(standard("continuous", enable_prefix_cache=False))
    outcomes = [bench.run([one]) for one in requests]
    return replace(
        outcomes[-1],
        tokens={name: said for each in outcomes for name, said in each.tokens.items()},
        logprobs={name: of for each in outcomes for name, of in each.logprobs.items()},
    )


def choices_of(seed: int) -> list[Request]:
    """Three choices each of two prompts; what draws them is derived from `seed`."""
    return [
        replace(
            request(f"all of {number}", conversation(number), max_tokens=40, temperature=1.2, n=3),
            seeds=tuple(derive_seed(seed + number, index) for index in range(3)),
            sequence_ids=tuple(f"choice {index} of {number}" for index in range(3)),
        )
        for number in (13, 16)
    ]


def choices_alone() -> list[Request]:
    """Separate requests that have the seeds of those choices."""
    return [
        replace(
            choice,
            request_id=name,
            sampling=replace(choice.sampling, n=1),
            seeds=(seed,),
            sequence_ids=(),
        )
        for choice in choices_of(41)
        for name, seed in zip(choice.sequences, choice.seeds, strict=True)
    ]


@cache
def choices_said() -> Outcome:
    """Answers of those."""
    return alone(choices_alone())


@cache
def said_without_logprobs() -> Outcome:
    """Answers of the crowd and of the choices that ask for no log-probability, each alone."""
    return alone(without_logprobs([*crowd(), *choices_alone()]))


@cache
def truth() -> Outcome:
    """Answers of the crowd's requests, each alone."""
    return alone(crowd())


def lost_blocks(records: Sequence[StepRecord]) -> set[str]:
    """Sequences that lost their blocks in the last steps."""
    return {name for record in records for name in (*record.step.preempted, *record.swapped)}


def all_free(stats: EngineStats) -> bool:
    return (
        stats.num_free_kv_blocks == stats.num_kv_blocks
        and stats.num_free_host_blocks == stats.num_host_blocks
    )
