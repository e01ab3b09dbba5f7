"""Steps handed in before the one before them is computed: the same tokens, fed on the device."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.api.step import BlockCopy, Step
from tandem_engine.model.decoder import Decoder
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.step_handle import NOT_FINITE
from tests.unit.engine.runner_bench import (  # noqa: F401 - a fixture that is used by itself
    PROMPT,
    Bench,
    Watched,
    _one_thread,
    decoder,
    ids_of,
    request,
)

TABLES = {"a": range(8), "b": range(8, 16), "c": range(16, 24)}
N = len(PROMPT)


def step(starts: dict[str, int], length: int = 1) -> Step:
    """A step of rows that have `length` tokens each, from these positions on."""
    return Step(
        sequence_ids=list(starts),
        num_tokens=[length] * len(starts),
        starts=list(starts.values()),
        block_tables=[TABLES[name] for name in starts],
        num_decodes=len(starts) if length == 1 else 0,
    )


@pytest.fixture
def bench(decoder: Decoder) -> Iterator[Bench]:  # noqa: F811
    made = Bench(decoder)
    yield made
    made.runner.close()


def in_turn(bench: Bench, steps: list[Step]) -> list[dict[str, list[int]]]:
    results = [bench.runner.run(each) for each in steps]
    return [{name: ids_of(got) for name, got in each.tokens.items()} for each in results]


def one_ahead(bench: Bench, steps: list[Step]) -> list[dict[str, list[int]]]:
    """Each step is handed in before the one before it is asked for."""
    said, handle = [], bench.runner.submit(steps[0])
    for following in [*steps[1:], None]:
        after = None if following is None else bench.runner.submit(following)
        result = handle.result()
        said.append({name: ids_of(got) for name, got in result.tokens.items()})
        if after is not None:
            handle = after
    return said


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "repetition_penalty": 1.4, "frequency_penalty": 0.4},
    {"temperature": 0.0, "min_tokens": 6, "presence_penalty": 1.0, "logprobs": 2},
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_tokens_are_those_of_steps_one_after_another(
    decoder: Decoder,  # noqa: F811
    bench: Bench,
    sampling: dict[str, Any],
) -> None:
    steps = [step({"a": 0, "b": 0}, N)]
    steps += [step({"a": N + at, "b": N + at}) for at in range(6)]
    # One leaves, another comes, and the rows change positions.
    steps += [step({"b": N + 6}), step({"c": 0}, N), step({"c": N, "b": N + 7})]
    other = Bench(decoder)
    for each in (bench, other):
        each.add(*(request(name, seeds=(at,), **sampling) for at, name in enumerate("abc")))

    said = one_ahead(bench, steps)
    assert said == in_turn(other, steps)
    assert len({token for each in said for [token] in each.values()}) > 1


def test_a_removed_row_is_computed_once_more_and_disturbs_no_other(
    decoder: Decoder,  # noqa: F811
    bench: Bench,
) -> None:
    for each in (bench, other := Bench(decoder)):
        each.add(request("a"), request("b"))
    steps = [step({"a": 0, "b": 0}, N), step({"a": N, "b": N}), step({"b": N + 1})]
    expected = in_turn(other, steps)

    first = bench.runner.submit(steps[0])
    second = bench.runner.submit(steps[1])
    first.result()
    bench.runner.remove("a")
    third = bench.runner.submit(steps[2])
    assert ids_of(second.result().tokens["b"]) == expected[1]["b"]
    assert ids_of(third.result().tokens["b"]) == expected[2]["b"]


def test_rows_without_numbers_fail_alone_and_the_others_go_on(bench: Bench) -> None:
    bench.add(request("a"), request("b"))
    spoilt: list[int] = []

    def spoil(logits: Tensor) -> None:
        if not spoilt:
            logits[0] = torch.nan
        spoilt.append(len(logits))

    bench.runner.spoil = spoil
    first = bench.runner.submit(step({"a": 0, "b": 0}, N))
    second = bench.runner.submit(step({"a": N, "b": N}))

    assert first.result().failed == {"a": NOT_FINITE}
    assert "b" in second.result().tokens


class Broken(Watched):
    """Raises in its first forward pass."""

    calls = 0

    def forward(self, batch: FlatBatch) -> Tensor:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("no such kernel")
        return super().forward(batch)


def test_a_step_that_raises_does_not_take_the_next_one_with_it(bench: Bench) -> None:
    bench.runner.__class__ = Broken
    bench.add(request("a"), request("b"))
    first = bench.runner.submit(step({"a": 0}, N))
    second = bench.runner.submit(
        Step(
            sequence_ids=["a", "b"],
            num_tokens=[1, N],
            starts=[N, 0],
            block_tables=[TABLES["a"], TABLES["b"]],
            num_decodes=1,
        )
    )

    assert first.result().failed == {"a": "RuntimeError: no such kernel"}
    assert "b" in second.result().tokens


def test_choices_are_brought_about_by_a_step_that_was_handed_in(bench: Bench) -> None:
    bench.add(request("a", seeds=(1, 2), temperature=1.0))
    whole = Step(sequence_ids=["a.0"], num_tokens=[N], starts=[0], block_tables=[range(8)])

    assert bench.runner.submit(whole).result().tokens.keys() == {"a.0", "a.1"}


def test_forked_choices_are_scheduled_async_like_any_other_row(
    decoder: Decoder,  # noqa: F811
    bench: Bench,
) -> None:
    def of(start: int) -> Step:
        return Step(
            sequence_ids=["a.0", "a.1"],
            num_tokens=[1, 1],
            starts=[start, start],
            block_tables=[range(8), [0, 1, *range(8, 14)]],
            num_decodes=2,
            copied=[BlockCopy(2, 8)] if start == N else [],
        )

    whole = Step(sequence_ids=["a.0"], num_tokens=[N], starts=[0], block_tables=[range(8)])
    for each in (bench, other := Bench(decoder)):
        each.add(request("a", seeds=(1, 2), temperature=1.0))
        each.runner.run(whole)
    steps = [of(N + at) for at in range(4)]

    assert one_ahead(bench, steps) == in_turn(other, steps)


def test_one_thread_computes_and_ends_when_the_runner_is_closed(bench: Bench) -> None:
    bench.add(request("a"))
    names: list[str] = []
    bench.runner.spoil = lambda _: names.append(threading.current_thread().name)
    bench.runner.submit(step({"a": 0}, N)).result()
    bench.runner.run(step({"a": N}))
    bench.runner.close()
    bench.runner.run(step({"a": N + 1}))

    assert names[:2] == ["tandem-compute"] * 2
    assert names[2] == threading.current_thread().name
