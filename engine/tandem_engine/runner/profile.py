"""Memory of steps beside weights and KV cache, measured by steps that are run.

The largest step itself would take minutes of every start: 8,192 prompt tokens through all layers
of a model are that much work for a CPU. But all that a step holds is of a fixed size, or grows in
proportion to one of three numbers: its tokens, the rows that are sampled, and the context that a
row reads. So a few small steps are run, and what each holds at most tells the price of one more.

Two layers are run, since layers take turns in the same memory, and the last one computes less than
the others. Rows are sampled in the way that holds the most at once.

Ranks that share a model run the same steps together, and each measures its own memory.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, NamedTuple, Self

import torch

from tandem_engine.api.errors import ConfigError
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Step, StepResult
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.kvcache.capacity import StepCost
from tandem_engine.model.decoder import Decoder, KVCache, allocate_kv_cache
from tandem_engine.runner.executor import Executor, LocalExecutor
from tandem_engine.runner.runner import ModelRunner

NUM_TOKENS: Final = 1024
"""Tokens of the step that gives the cost of a token."""
CONTEXT: Final = 4096
"""Tokens of the row that gives the cost of reading its context."""
NUM_ROWS: Final = 16
"""Rows of the step that gives the cost of a row."""
_CHOICES: Final = 2
"""Choices of a request there: its logits are copied for each, as those of rows that fork."""
_FEW_TOKENS: Final = 64
_LAYERS: Final = 2

# The flattest distribution that a request can ask for, cut by its mass, so that most tokens are
# read; every penalty, a bias, and log-probabilities besides. In torch that copies the logits
# many times over; a device's own kernel copies none of them, and its workspace is set up once.
_SAMPLING: Final = SamplingParams(
    max_tokens=1,
    temperature=100.0,
    top_p=0.999,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    logit_bias={0: 1.0},
    logprobs=20,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One row of a step that is tried."""

    length: int
    """Its tokens in the step."""
    start: int = 0
    """Those before, which are in the cache."""
    choices: int = 0
    """Sequences that are sampled behind it; 0: its prompt goes on."""


class StepMemory(NamedTuple):
    """Bytes that a process held before a step, and at most while it computed the step."""

    before: int
    peak: int

    @property
    def cost(self) -> int:
        """Bytes that the step took."""
        return max(0, self.peak - self.before)

    @classmethod
    def over(cls, parts: Sequence[Self]) -> Self:
        """The memory of a step that was computed in several parts."""
        return cls(before=parts[0].before, peak=max(part.peak for part in parts))


class ProfilePlan:
    """The steps that are run, and what their memory tells.

    Args:
        max_positions: Tokens that a sequence may have.
        block_size: Tokens of a KV block.
    """

    def __init__(self, max_positions: int, block_size: int) -> None:
        longest = min(NUM_TOKENS, max_positions)
        context = min(CONTEXT, max_positions)
        few = _Row(length=min(_FEW_TOKENS, longest), choices=1)
        many = NUM_TOKENS // longest
        prompts = (*(_Row(length=longest),) * (many - 1), _Row(length=longest, choices=1))
        requests = (_Row(length=1, choices=_CHOICES),) * (NUM_ROWS // _CHOICES)
        later = replace(few, start=context - few.length)
        # Prompts come last, as the memory of activations is kept from step to step.
        self._steps = ((few,), (few,), requests, (later,), prompts)
        self._context, self._tokens = later.start, many * longest - few.length
        self.block_size = block_size
        self.num_blocks = max(many * -(-longest // block_size), -(-context // block_size), NUM_ROWS)

    @property
    def num_steps(self) -> int:
        """Steps of one run."""
        return len(self._steps)

    def run(self, executor: Executor, runtime: DeviceRuntime) -> Iterator[StepMemory]:
        """Run one step after another; yield the memory of each.

        Raises:
            ConfigError: The model does not run.
            ReplicaLost: Another rank cannot go on.
        """
        runner = ModelRunner(executor, runtime=runtime, block_size=self.block_size)
        for rows in self._steps:
            yield self._measure(runner, runtime, rows)

    def cost(self, measured: Sequence[StepMemory]) -> StepCost:
        """Costs of steps in a process that has measured those of `run`."""
        first, few, requests, later, prompts = measured
        set_up, base = max(0, few.before - first.before), few.cost
        return StepCost(
            fixed=set_up + base,
            per_token=_price(prompts.cost - base, self._tokens),
            per_row=_price(requests.cost - base, NUM_ROWS - 1),
            per_context=_price(later.cost - base, self._context) if self._context else 0,
        )

    def _measure(
        self, runner: ModelRunner, runtime: DeviceRuntime, rows: Sequence[_Row]
    ) -> StepMemory:
        requests = [_request(f"profile-{number}", row) for number, row in enumerate(rows)]
        for request in requests:
            runner.add(request)
        step = self._step(rows, requests)
        results: list[StepResult] = []
        memory = step_memory(runtime, lambda: results.append(runner.run(step)))
        for request in requests:
            for sequence_id in request.sequences:
                runner.remove(sequence_id)
        if failed := results[0].failed:
            raise ConfigError(f"The model does not run: {next(iter(failed.values()))}.")
        return memory

    def _step(self, rows: Sequence[_Row], requests: Sequence[Request]) -> Step:
        counts = [-(-(row.start + row.length) // self.block_size) for row in rows]
        ends = list(accumulate(counts))
        return Step(
            sequence_ids=[request.sequences[0] for request in requests],
            num_tokens=[row.length for row in rows],
            starts=[row.start for row in rows],
            block_tables=[range(end - count, end) for end, count in zip(ends, counts, strict=True)],
        )


def with_halves(whole: StepCost, halves: StepCost) -> StepCost:
    """Costs of steps where some are cut in two.

    Args:
        whole: The cost of steps that are not cut.
        halves: That of cut ones, measured while the activations of whole ones were kept.
    """
    return StepCost(
        fixed=max(whole.fixed, halves.fixed),
        per_token=whole.per_token + halves.per_token,
        per_row=max(whole.per_row, halves.per_row),
        per_context=max(whole.per_context, halves.per_context),
    )


def profile_steps(
    decoder: Decoder, runtime: DeviceRuntime, *, block_size: int, kv_dtype: torch.dtype
) -> StepCost:
    """Run a few small steps on `decoder`, and tell in bytes what steps cost.

    To be called before any other step: what the first one sets up for good counts.

    Args:
        decoder: The model.
        runtime: Its device.
        block_size: Tokens of a KV block.
        kv_dtype: Type of the KV cache.

    Raises:
        ConfigError: The model does not run, or its KV cache cannot be of that type.
    """
    plan = ProfilePlan(decoder.max_positions, block_size)
    layers = first_layers(decoder, runtime, plan, kv_dtype)
    measured = list(plan.run(LocalExecutor(*layers), runtime))
    del layers
    give_back(runtime)
    return plan.cost(measured)


def first_layers(
    decoder: Decoder, runtime: DeviceRuntime, plan: ProfilePlan, kv_dtype: torch.dtype
) -> tuple[Decoder, KVCache]:
    """The layers that are run, of a model or a rank's part of it, and a KV cache for them.

    Raises:
        ConfigError: The KV cache cannot be of that type.
    """
    layers = decoder.packed_model.layers[:_LAYERS]
    part = Decoder(
        decoder.config,
        replace(decoder.packed_model, layers=layers),
        runtime.kernels,
        plan=replace(decoder.plan, layers=decoder.plan.layers[: len(layers)]),
    )
    layout = part.cache_layout(plan.block_size, kv_dtype)
    cache = allocate_kv_cache(layout, num_blocks=plan.num_blocks, device=part.device)
    # It takes up its memory as it is written: now, and not in a step that is measured.
    cache.blocks.fill_(0)
    return part, cache


def step_memory(runtime: DeviceRuntime, work: Callable[[], object]) -> StepMemory:
    """Run `work`, a step, and measure it."""
    return StepMemory(before=_held(runtime), peak=runtime.peak_memory(work))


def give_back(runtime: DeviceRuntime) -> None:
    """Give back the cache, and what steps have freed, once nothing refers to them."""
    # The last step and the runner refer to each other.
    gc.collect()
    _held(runtime)


def _held(runtime: DeviceRuntime) -> int:
    return runtime.peak_memory(_nothing)


def _price(num_bytes: int, count: int) -> int:
    """Bytes of one of so many, rounded up; not below 0, as a measurement is off by huge pages."""
    return -(-max(0, num_bytes) // max(1, count))


def _request(name: str, row: _Row) -> Request:
    # A prompt with a token more than the step computes yields nothing yet.
    num_prompt = row.start + row.length + (row.choices == 0)
    choices = range(max(1, row.choices))
    return Request(
        request_id=name,
        prompt_token_ids=(0,) * num_prompt,
        sampling=replace(_SAMPLING, n=len(choices)),
        max_new_tokens=1,
        seeds=tuple(choices),
        sequence_ids=(name, *(f"{name}-{index}" for index in choices[1:])),
    )


def _nothing() -> None:
    """Take no memory."""
