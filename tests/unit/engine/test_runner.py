"""The runner, driven by steps made by hand: blocks, choices, beams, failures."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tandem_engine.api.request import Request
from tandem_engine.api.step import BeamMove, BlockCopy, Step
from tandem_engine.model.decoder import Decoder
from tandem_engine.runner.batch import flatten
from tandem_engine.runner.executor import LocalExecutor
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.sampling.row import Row, row_of
from tests.unit.engine.runner_bench import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    PROMPT,
    RUNTIME,
    Bench,
    _one_thread,
    assert_same,
    decoder,
    ids_of,
    request,
)

# Fixtures stand here by being imported.
__all__ = ["_one_thread", "decoder"]

# In 8 bits the scales go where the blocks go.
KV_DTYPES = pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=["float", "int8"])

# Shared blocks and copies


def test_rows_that_share_a_prefix_get_the_same_logits_as_alone(decoder: Decoder) -> None:
    requests = [request("a", (*PROMPT[:8], 40, 41)), request("b", (*PROMPT[:8], 50, 51))]
    alone, shared = Bench(decoder), Bench(decoder)
    for bench in (alone, shared):
        bench.add(*requests)
        bench.step(("a", 0, 8, [0, 1]))
    alone.step(("b", 0, 8, [4, 5]))

    for start, count in ((8, 2), (10, 1), (11, 1), (12, 1)):
        own = [("a", start, count, [0, 1, 2, 3]), ("b", start, count, [4, 5, 6, 7])]
        common = [("a", start, count, [0, 1, 2, 3]), ("b", start, count, [0, 1, 6, 7])]
        assert_same(shared.logits(*common), alone.logits(*own))


def test_a_step_writes_its_own_slots_and_nothing_else(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.cache.blocks.normal_(generator=torch.Generator().manual_seed(0))
    bench.add(request("a"), request("b"), request("c", PROMPT * 2))
    bench.step(("a", 0, 10, [0, 1, 2]))
    bench.step(("b", 8, 2, [0, 1, 3]))
    before = bench.cache.blocks.clone()

    bench.step(("a", 10, 1, [0, 1, 2]), ("b", 10, 1, [0, 1, 3]), ("c", 8, 3, [0, 1, 4]))

    changed = (before != bench.cache.blocks).any(dim=-1)  # [layers, 2, blocks, heads, slots]
    slots = {(block, slot) for *_, block, _, slot in changed.nonzero().tolist()}
    # c's block 4 was begun; the reference wipes all of it, native kernels have no need to.
    assert slots - {(4, 3)} == {(2, 2), (3, 2), (4, 0), (4, 1), (4, 2)}


@KV_DTYPES
def test_a_copied_block_can_be_written_without_the_other_one(
    decoder: Decoder, kv_dtype: torch.dtype | None
) -> None:
    requests = [request("a", (*PROMPT, 40)), request("b", (*PROMPT, 50))]
    alone, forked = (Bench(decoder, kv_dtype=kv_dtype) for _ in range(2))
    for bench in (alone, forked):
        bench.add(*requests)
        bench.step(("a", 0, 10, [0, 1, 2]))
    alone.step(("b", 0, 10, [4, 5, 6]))
    copied = [BlockCopy(2, 6)]

    for start in (10, 11, 12):
        own = [("a", start, 1, [0, 1, 2, 3]), ("b", start, 1, [4, 5, 6, 7])]
        common = [("a", start, 1, [0, 1, 2, 3]), ("b", start, 1, [0, 1, 6, 7])]
        assert_same(forked.logits(*common, copied=copied), alone.logits(*own))
        copied = []


@KV_DTYPES
def test_a_sequence_goes_on_from_other_blocks_after_a_swap(
    decoder: Decoder, kv_dtype: torch.dtype | None
) -> None:
    undisturbed, swapped = (Bench(decoder, kv_dtype=kv_dtype) for _ in range(2))
    for bench in (undisturbed, swapped):
        bench.add(request("a"), request("b", (9, 8, 7, 6, 5, 4, 3, 2)))
        bench.step(("a", 0, 10, [0, 1, 2]))
        bench.step(("a", 10, 1, [0, 1, 2]))
    out = [BlockCopy(0, 5), BlockCopy(1, 2), BlockCopy(2, 7)]
    swapped.step(("b", 0, 8, [1, 0]), swapped_out=out)  # others take its blocks at once
    swapped.step(("b", 8, 1, [1, 0, 2]))
    back = [BlockCopy(5, 30), BlockCopy(2, 0), BlockCopy(7, 31)]
    swapped.runner.remove("b")

    assert_same(
        swapped.logits(("a", 11, 1, [30, 0, 31]), swapped_in=back),
        undisturbed.logits(("a", 11, 1, [0, 1, 2])),
    )
    assert_same(
        swapped.logits(("a", 12, 1, [30, 0, 31, 3])),
        undisturbed.logits(("a", 12, 1, [0, 1, 2, 3])),
    )


def test_blocks_go_out_then_in_then_across(decoder: Decoder) -> None:
    bench = Bench(decoder)
    blocks = bench.cache.blocks.normal_()
    before = blocks.clone()

    bench.step(
        swapped_out=[BlockCopy(0, 3), BlockCopy(1, 4)],
        swapped_in=[BlockCopy(4, 0), BlockCopy(3, 1)],
        copied=[BlockCopy(0, 2), BlockCopy(5, 6), BlockCopy(6, 7)],
    )

    for block, source in {0: 1, 1: 0, 2: 1, 3: 3, 5: 5, 6: 5, 7: 5}.items():
        assert torch.equal(blocks[:, :, block], before[:, :, source]), block


def test_a_swap_without_host_blocks_is_refused(decoder: Decoder) -> None:
    cache = Bench(decoder).cache
    runner = ModelRunner(LocalExecutor(decoder, cache), runtime=RUNTIME, block_size=BLOCK_SIZE)

    with pytest.raises(ValueError, match="no host blocks"):
        runner.run(Step(swapped_out=[BlockCopy(0, 0)]))


# Several choices


def test_choices_are_what_separate_requests_with_their_seeds_are(decoder: Decoder) -> None:
    seeds = (11, 12, 13)
    bench = Bench(decoder)
    bench.add(request("r", temperature=1.0, n=3, seeds=seeds))
    first = bench.step(("r.0", 0, 10, [0, 1, 2])).tokens
    got = {name: ids_of(tokens) for name, tokens in first.items()}
    assert list(got) == ["r.0", "r.1", "r.2"]
    tables = {"r.0": [0, 1, 2, 3, 4], "r.1": [0, 1, 5, 6, 7], "r.2": [0, 1, 8, 9, 10]}
    copied = [BlockCopy(2, 5), BlockCopy(2, 8)]
    for start in range(10, 18):
        rows = [(name, start, 1, table) for name, table in tables.items()]
        for name, tokens in bench.step(*rows, copied=copied).tokens.items():
            got[name] += ids_of(tokens)
        copied = []

    for name, seed in zip(tables, seeds, strict=True):
        assert got[name] == alone(decoder, request("x", temperature=1.0, seeds=(seed,)), 9)
    assert len({tuple(tokens) for tokens in got.values()}) == 3


def test_choices_share_the_prompt(decoder: Decoder) -> None:
    bench = Bench(decoder)
    asked = request("r", n=3, seeds=(1, 2, 3))
    bench.add(asked)
    bench.step(("r.0", 0, 10, [0, 1, 2]))

    rows = bench.runner._rows.by_id
    assert all(rows[name].prompt is asked.prompt_token_ids for name in asked.sequences)


def test_a_choice_that_is_removed_before_it_exists_is_never_made(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.add(request("r", n=3, seeds=(1, 2, 3)))
    bench.step(("r.0", 0, 4, [0]))
    bench.runner.remove("r.1")
    bench.runner.remove("unknown")

    assert bench.step(("r.0", 4, 6, [0, 1, 2])).tokens.keys() == {"r.0", "r.2"}
    assert bench.step(("r.0", 10, 1, [0, 1, 2])).tokens.keys() == {"r.0"}


def test_nothing_is_kept_of_a_request_whose_sequences_are_removed(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.add(request("r", n=3, seeds=(1, 2, 3)), request("s", n=2, seeds=(1, 2)))
    bench.add(request("t", n=2, seeds=(1, 2), use_beam_search=True))
    bench.step(("r.0", 0, 10, [0, 1, 2]), ("t.0", 0, 10, [3, 4, 5]))
    bench.step(beam_moves={"t.0": BeamMove("t.0", 1), "t.1": BeamMove("t.0", 2)})

    for name in ("r.2", "r.0", "r.1", "s.0", "t.0", "t.1"):  # s.1 is not there yet
        bench.runner.remove(name)

    rows = bench.runner._rows
    assert not rows.by_id
    assert not rows._pending_forks
    assert not rows._dropped


def test_a_prompt_that_is_computed_again_makes_no_choice_twice(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.add(request("r", n=2, seeds=(1, 2)))
    bench.step(("r.0", 0, 10, [0, 1, 2]))
    bench.runner.remove("r.1")

    again = bench.step(("r.0", 0, 11, [3, 4, 5]), preempted=("r.0",))

    assert again.tokens.keys() == {"r.0"}


def alone(decoder: Decoder, asked: Request, count: int) -> list[int]:
    """The first tokens of a request that has the runner to itself."""
    bench = Bench(decoder)
    bench.add(asked)
    table = list(range(NUM_BLOCKS))
    num_prompt = len(asked.prompt_token_ids)
    got = ids_of(bench.step((asked.request_id, 0, num_prompt, table)).tokens[asked.request_id])
    for start in range(num_prompt, num_prompt + count - 1):
        got += ids_of(bench.step((asked.request_id, start, 1, table)).tokens[asked.request_id])
    return got


# Beams


def test_a_beam_yields_its_likeliest_continuations(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.add(request("r", seeds=(0, 0, 0), n=3, use_beam_search=True), request("s"))
    result = bench.step(("r.0", 0, 10, [0, 1, 2]), ("s", 0, 10, [3, 4, 5]))

    best = torch.log_softmax(bench.runner.logits["r.0"], -1).topk(6)
    assert result.tokens.keys() == {"s"}
    assert [each.token_id for each in result.candidates["r.0"]] == best.indices.tolist()
    torch.testing.assert_close(
        torch.tensor([each.logprob for each in result.candidates["r.0"]]), best.values
    )


def test_beams_become_what_the_moves_say_all_at_once(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.add(request("r", seeds=(0, 0), n=2, use_beam_search=True))
    bench.step(("r.0", 0, 10, [0, 1, 2]))
    moves = {"r.0": BeamMove("r.0", 40), "r.1": BeamMove("r.0", 50)}
    rows = [("r.0", 10, 1, [0, 1, 2]), ("r.1", 10, 1, [0, 1, 3])]
    bench.step(*rows, beam_moves=moves, copied=[BlockCopy(2, 3)])

    crossed = {"r.0": BeamMove("r.1", 60), "r.1": BeamMove("r.0", 70)}
    rows = [("r.0", 11, 1, [0, 1, 3]), ("r.1", 11, 1, [0, 1, 2])]
    result = bench.step(*rows, beam_moves=crossed)

    assert result.candidates.keys() == {"r.0", "r.1"}
    assert bench.runner._rows.by_id["r.0"].output == [50, 60]
    for name, output in (("r.0", (50, 60)), ("r.1", (40, 70))):
        torch.testing.assert_close(
            bench.runner.logits[name], prefilled(decoder, output), atol=1e-4, rtol=0
        )


def test_a_beam_can_take_over_one_that_was_dropped(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.add(request("r", seeds=(0, 0), n=2, use_beam_search=True), request("s"))
    bench.step(("r.0", 0, 10, [0, 1, 2]))
    bench.step(beam_moves={"r.0": BeamMove("r.0", 40), "r.1": BeamMove("r.0", 50)})

    bench.runner.remove("r.1")
    bench.step(("s", 0, 10, [3, 4, 5]))  # the beams may have to wait a while
    bench.step(beam_moves={"r.0": BeamMove("r.1", 60)})

    assert bench.runner._rows.by_id["r.0"].output == [50, 60]


def prefilled(decoder: Decoder, output: Sequence[int]) -> Tensor:
    """The logits behind PROMPT and `output`, computed in one step."""
    bench = Bench(decoder)
    bench.add(request("x", (*PROMPT, *output)))
    return bench.logits(("x", 0, len(PROMPT) + len(output), list(range(8))))["x"]


def test_rows_without_numbers_fail_alone(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.add(request("a"), request("b"), request("c", seeds=(0, 0), n=2, use_beam_search=True))
    bench.add(request("d", seeds=(1, 2), n=2))

    def spoil(logits: Tensor) -> None:
        logits[1:] = torch.nan

    bench.runner.spoil = spoil
    result = bench.step(
        *((name, 0, 10, range(3 * at, 3 * at + 3)) for at, name in enumerate(("a", "b", "c.0"))),
        ("d.0", 0, 10, range(9, 12)),
    )

    assert result.tokens.keys() == {"a"}
    assert not result.candidates
    assert result.failed.keys() == {"b", "c.0", "d.0", "d.1"}


def test_a_step_beyond_what_a_row_knows_is_a_bug_and_says_so(decoder: Decoder) -> None:
    bench = Bench(decoder)
    bench.add(request("a"))

    result = bench.step(("a", 0, 11, [0, 1, 2]))

    assert "asks for 11 tokens of its rows, which know only 10" in result.failed["a"]


# The flat batch

lengths = st.tuples(st.integers(1, 9), st.integers(0, 5), st.integers(0, 13), st.integers(1, 6))
"""Prompt, output, offset of the start, and how far to go; the last two are cut to what is known."""


@given(st.lists(st.tuples(lengths, st.integers(0, 3)), min_size=1, max_size=6))
def test_a_flat_batch_holds_each_rows_tokens_and_yields_at_the_last_ones(
    cases: list[tuple[tuple[int, int, int, int], int]],
) -> None:
    rows: dict[str, Row] = {}
    columns: list[tuple[str, int, int]] = []
    drafts: dict[str, list[int]] = {}
    expected: dict[str, tuple[list[int], int]] = {}
    for at, ((num_prompt, num_output, offset, most), asked) in enumerate(cases):
        name = str(at)
        row = row_of(request(name, [100 * at + token for token in range(num_prompt)]))
        row.output += [100 * at + 50 + token for token in range(num_output)]
        rows[name] = row
        start = offset % row.num_known
        end = min(row.num_known, start + most)
        yields = end == row.num_known
        if asked and yields:
            drafts[name] = [9000 + token for token in range(asked)]
        own = [*row.tokens[start:end], *drafts.get(name, [])]
        expected[name] = (own, 1 + len(drafts.get(name, [])) if yields else 0)
        columns.append((name, end - start + len(drafts.get(name, [])), start))
    ids, counts, starts = zip(*columns, strict=True)

    batch = flatten(
        Step(
            sequence_ids=ids,
            num_tokens=counts,
            starts=starts,
            block_tables=[list(range(16 * at, 16 * at + 16)) for at in range(len(ids))],
            drafts=drafts,
        ),
        rows,
        block_size=BLOCK_SIZE,
        device=torch.device("cpu"),
    )

    assert batch.attention.num_decode_rows == counts.count(1)
    tokens, yield_at = batch.token_ids.tolist(), batch.yield_at.array.tolist()
    spans = list(pairwise(batch.attention.row_starts.tolist()))
    blocks = (batch.attention.blocks[batch.attention.first_block[:-1]] // 16).tolist()
    for at, (first, end) in zip(blocks, spans, strict=True):
        own, num_yields = expected[str(at)]
        assert tokens[first : first + len(own)] == own
        assert first + len(own) == end
        last = first + len(own)
        assert [i for i in yield_at if first <= i < end] == list(range(last - num_yields, last))
    assert {row.sequence_id for row in batch.yielding} == {
        name for name, (_, num_yields) in expected.items() if num_yields
    }
