"""Memory of steps beside weights and KV cache, measured by steps that are run.

The largest step itself would take minutes of every start: 8,192 prompt tokens through all layers
of a model are that much work for a CPU. But all that a step holds is of a fixed size, or grows in
proportion to one of three numbers: its tokens, the rows that are sampled, and the context that a
row reads. So a few small steps are run, and what each holds at most tells the price of one more.

Two layers are run, since layers take turns in the same memory, and the last one computes less than
the others. Rows are sampled in the way that holds the most at once.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import torch

from tandem_engine.api.errors import ConfigError
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import Step, StepResult
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.kvcache.capacity import StepCost
from tandem_engine.model.decoder import Decoder, allocate_kv_cache
from tandem_engine.runner.executor import LocalExecutor
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
    longest = min(NUM_TOKENS, decoder.max_positions)
    context = min(CONTEXT, decoder.max_positions)
    few = _Row(length=min(_FEW_TOKENS, longest), choices=1)
    many = NUM_TOKENS // longest
    prompts = (*(_Row(length=longest),) * (many - 1), _Row(length=longest, choices=1))
    requests = (_Row(length=1, choices=_CHOICES),) * (NUM_ROWS // _CHOICES)
    later = replace(few, start=context - few.length)

    num_blocks = max(many * -(-longest // block_size), -(-context // block_size), NUM_ROWS)
    bench = _Bench(
        decoder, runtime, block_size=block_size, num_blocks=num_blocks, kv_dtype=kv_dtype
    )
    set_up = bench.retained(few)
    base = bench.cost(few)
    per_row = _price(bench.cost(*requests) - base, NUM_ROWS - 1)
    per_context = _price(bench.cost(later) - base, later.start) if later.start else 0
    # The last one, as the memory of activations is kept from step to step.
    per_token = _price(bench.cost(*prompts) - base, many * longest - few.length)
    bench.close()
    return StepCost(
        fixed=set_up + base, per_token=per_token, per_row=per_row, per_context=per_context
    )


def _price(num_bytes: int, count: int) -> int:
    """Bytes of one of so many, rounded up; not below 0, as a measurement is off by huge pages."""
    return -(-max(0, num_bytes) // max(1, count))


class _Bench:
    """Runs steps on the first layers of a decoder, in a KV cache of its own."""

    def __init__(
        self,
        decoder: Decoder,
        runtime: DeviceRuntime,
        *,
        block_size: int,
        num_blocks: int,
        kv_dtype: torch.dtype,
    ) -> None:
        layers = decoder.packed_model.layers[:_LAYERS]
        packed_model = replace(decoder.packed_model, layers=layers)
        plan = replace(decoder.plan, layers=decoder.plan.layers[: len(layers)])
        decoder = Decoder(decoder.config, packed_model, runtime.kernels, plan=plan)
        layout = decoder.cache_layout(block_size, kv_dtype)
        cache = allocate_kv_cache(layout, num_blocks=num_blocks, device=decoder.device)
        # It takes up its memory as it is written: now, and not in a step that is measured.
        cache.blocks.fill_(0)
        self._runtime = runtime
        self._block_size = block_size
        self._runner: ModelRunner | None = ModelRunner(
            LocalExecutor(decoder, cache),
            runtime=runtime,
            block_size=block_size,
        )

    def retained(self, *rows: _Row) -> int:
        """Bytes that are still held once a step is over: what the first one sets up."""
        before = self._held()
        self.cost(*rows)
        return max(0, self._held() - before)

    def cost(self, *rows: _Row) -> int:
        """Bytes that a step holds at most beside what was there before it.

        Raises:
            ConfigError: A row fails.
        """
        runner = self._runner
        if runner is None:
            raise RuntimeError("the bench is closed; this is a bug")
        requests = [_request(f"profile-{number}", row) for number, row in enumerate(rows)]
        for request in requests:
            runner.add(request)
        step = self._step(rows, requests)
        results: list[StepResult] = []
        before = self._held()
        peak = self._runtime.peak_memory(lambda: results.append(runner.run(step)))
        for request in requests:
            for sequence_id in request.sequences:
                runner.remove(sequence_id)
        if failed := results[0].failed:
            raise ConfigError(f"The model does not run: {next(iter(failed.values()))}.")
        return max(0, peak - before)

    def close(self) -> None:
        """Give back the cache, and what steps have freed."""
        self._runner = None
        # The last step and the runner refer to each other.
        gc.collect()
        self._held()

    def _held(self) -> int:
        return self._runtime.peak_memory(_nothing)

    def _step(self, rows: Sequence[_Row], requests: Sequence[Request]) -> Step:
        counts = [-(-(row.start + row.length) // self._block_size) for row in rows]
        ends = list(accumulate(counts))
        return Step(
            sequence_ids=[request.sequences[0] for request in requests],
            num_tokens=[row.length for row in rows],
            starts=[row.start for row in rows],
            block_tables=[range(end - count, end) for end, count in zip(ends, counts, strict=True)],
        )


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
