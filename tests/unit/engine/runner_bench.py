"""A runner that tests drive by steps made by hand: on random weights, and on tandem-tiny."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.api.drafts import DraftLimits
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import SampledToken, Step, StepResult
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.model.decoder import Decoder, allocate_host_cache, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.drafts import Drafter
from tandem_engine.runner.executor import LocalExecutor
from tandem_engine.runner.runner import ModelRunner
from tests.tiny import TINY

BLOCK_SIZE = 4
NUM_BLOCKS = 96
NUM_HOST_BLOCKS = 8
RUNTIME = CpuRuntime(memory_bytes=1 << 30)
PROMPT = (17, 4, 200, 31, 5, 5, 77, 120, 3, 9)  # two blocks and a half

RowSpec = tuple[str, int, int, Sequence[int]]
"""A row: sequence id, start, tokens, block table."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """On models so small, threads wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def decoder(make_checkpoint: Callable[..., Path]) -> Decoder:
    return load_decoder(make_checkpoint("Qwen3ForCausalLM"), runtime=RUNTIME)


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    return load_decoder(TINY, dtype="float32", runtime=RUNTIME, max_positions=512)


class Watched(ModelRunner):
    """Keeps the logits of its last step, by sequence; a test may spoil them."""

    spoil: Callable[[Tensor], None] | None = None

    def forward(self, batch: FlatBatch) -> Tensor:
        logits = super().forward(batch)
        if self.spoil is not None:
            self.spoil(logits)
        self.logits = {
            row.sequence_id: values
            for row, values in zip(batch.yielding, logits, strict=False)  # drafts have no entry
        }
        return logits


class Bench:
    """A runner with a cache of its own."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        drafter: Drafter | None = None,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        layout = decoder.cache_layout(BLOCK_SIZE, kv_dtype)
        self.cache = allocate_kv_cache(layout, num_blocks=NUM_BLOCKS, device=decoder.device)
        host_cache = allocate_host_cache(self.cache, num_blocks=NUM_HOST_BLOCKS)
        self.runner = Watched(
            LocalExecutor(decoder, self.cache, host_cache=host_cache),
            runtime=RUNTIME,
            block_size=BLOCK_SIZE,
            drafter=drafter,
        )

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.runner.add(request)

    def step(
        self, *rows: RowSpec, num_drafts: Mapping[str, int] | None = None, **others: Any
    ) -> StepResult:
        """Run a step; with `num_drafts`, rows have so many tokens for drafts, if they come."""
        limits = DraftLimits(ngram=num_drafts or {})
        found = self.runner.propose(limits).drafts
        drafts = {name: draft.token_ids for name, draft in found.items()}
        for each, asked in (num_drafts or {}).items():
            late = asked - len(drafts.get(each, ()))
            rows = tuple((n, s, c - late if n == each else c, t) for n, s, c, t in rows)
        ids, starts, counts, tables = zip(*rows, strict=True) if rows else ((), (), (), ())
        step = Step(
            sequence_ids=ids,
            num_tokens=counts,
            starts=starts,
            block_tables=tables,
            drafts=drafts,
            **others,
        )
        return self.runner.run(step)

    def logits(self, *rows: RowSpec, **others: Any) -> dict[str, Tensor]:
        self.step(*rows, **others)
        return self.runner.logits


def request(
    name: str,
    prompt: Sequence[int] = PROMPT,
    *,
    seeds: tuple[int, ...] = (0,),
    stop_token_ids: frozenset[int] = frozenset(),
    **sampling: Any,
) -> Request:
    params = {"temperature": 0.0, "max_tokens": 64, **sampling}
    return Request(
        request_id=name,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(**params),
        max_new_tokens=64,
        stop_token_ids=stop_token_ids,
        seeds=seeds,
        sequence_ids=tuple(f"{name}.{at}" for at in range(len(seeds))) if len(seeds) > 1 else (),
    )


def ids_of(tokens: Sequence[SampledToken]) -> list[int]:
    return [token.token_id for token in tokens]


def assert_same(got: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal to the bit, and of the same sequences."""
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(got[name], values), name
