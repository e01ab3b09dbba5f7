"""Sampling of a step's rows in each way that a request may ask for, and in all of them at once."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle, islice
from typing import Final

import torch
from torch import Tensor

from benchmarks.kernels.cases import Case
from benchmarks.kernels.measure import Work
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.runtime import Kernels
from tandem_engine.sampling.row import Row, row_of
from tandem_engine.sampling.sampler import Sampler

VOCAB_SIZE: Final = 151_936
"""Qwen3's."""
NUM_ROWS: Final = 16
_SPREAD: Final = 3.0
"""Standard deviation of the logits: the top token then has about a tenth of the mass."""
_IN_A_ROW: Final = 10
"""In a step the logits come from the product before, and are in the caches still."""
_NUM_SEEN: Final = 2000
_NUM_BIASES: Final = 300


def sampling_cases(vocab_size: int = VOCAB_SIZE, num_rows: int = NUM_ROWS) -> Iterator[Case]:
    """Each way alone in all rows, then row by row another one."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * _SPREAD
    ways = _ways(vocab_size)
    for name, params in ways.items():
        yield _case(name, logits, [params] * num_rows)
    yield _case("mix", logits, list(islice(cycle(ways.values()), num_rows)))


def _ways(vocab_size: int) -> Mapping[str, SamplingParams]:
    drawn = SamplingParams(max_tokens=8192)
    flat = replace(drawn, temperature=100.0)
    biased = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(1))
    return {
        "greedy": replace(drawn, temperature=0.0),
        "T 1": drawn,
        "top_p 0.95": replace(drawn, top_p=0.95),
        "top_k 50": replace(drawn, top_k=50),
        "top_k 1000": replace(drawn, top_k=1000),
        "top_k 100000": replace(drawn, top_k=100_000),
        "T 0.6, top_k 20, top_p 0.95": replace(drawn, temperature=0.6, top_k=20, top_p=0.95),
        "min_p 0.05": replace(drawn, min_p=0.05),
        "flat": flat,
        "flat, top_p 0.999": replace(flat, top_p=0.999),
        "flat, top_p 0.5": replace(flat, top_p=0.5),
        "flat, top_k 100000": replace(flat, top_k=100_000),
        "flat, top_k 100000, top_p 0.95, min_p 0.01": replace(
            flat, top_k=100_000, top_p=0.95, min_p=0.01
        ),
        "penalties": replace(
            drawn, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5
        ),
        "bias 300": replace(drawn, logit_bias=dict.fromkeys(biased[:_NUM_BIASES].tolist(), 1.0)),
        "logprobs 20": replace(drawn, logprobs=20),
    }


def _case(name: str, logits: Tensor, params: list[SamplingParams]) -> Case:
    num_rows, vocab_size = logits.shape

    def prepare(kernels: Kernels) -> Work:
        rows = [_row(at, row_params, vocab_size) for at, row_params in enumerate(params)]
        sampler = Sampler(kernels.row_sampler())
        return lambda: sampler.sample_step(logits, rows)

    return Case(
        kernel=f"sample, {name}",
        shape=f"{num_rows} x {vocab_size}",
        prepare=prepare,
        num_bytes=logits.nbytes,
        in_a_row=_IN_A_ROW,
    )


def _row(seed: int, params: SamplingParams, vocab_size: int) -> Row:
    generator = torch.Generator().manual_seed(seed)
    request = Request(
        request_id=str(seed),
        prompt_token_ids=(0,),
        sampling=params,
        max_new_tokens=params.max_tokens,
        seeds=(seed,),
    )
    row = row_of(request)
    row.output += torch.randint(0, vocab_size, (_NUM_SEEN,), generator=generator).tolist()
    return row
