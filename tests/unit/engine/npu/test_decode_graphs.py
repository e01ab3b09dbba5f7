"""Steps of decodes as graphs: their sizes, their inputs, and the blocks that they write."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.device.graphs import DecodeShape, num_spare_blocks
from tandem_engine.device.npu.step import DecodeStepInputs, StepInputs
from tandem_engine.model.decode_graphs import DecodeGraphs, graph_sizes
from tandem_engine.model.decoder import Decoder, KVCache, allocate_kv_cache
from tandem_engine.model.kernel_stages import KernelStep
from tandem_engine.model.load_decoder import load_decoder
from tests.npu.operators import any_size, operators_on_cpu
from tests.npu.runtime import NpuOnCpu, RecordedKernels

BLOCK: Final = 4
NUM_BLOCKS: Final = 8
MAX_ROWS: Final = 6
KV_HEADS: Final = 2
CPU: Final = torch.device("cpu")


def decodes(*contexts: int) -> AttentionMetadata:
    """A step whose rows have so many tokens, each in two blocks of its own."""
    return build_attention_metadata(
        query_lens=[1] * len(contexts),
        context_lens=contexts,
        block_tables=[(2 * row, 2 * row + 1) for row in range(len(contexts))],
        block_size=BLOCK,
        device=CPU,
    )


@given(st.integers(1, 4096))
def test_each_number_of_rows_has_a_graph_of_less_than_twice_as_many(max_rows: int) -> None:
    sizes = graph_sizes(max_rows)

    assert sizes == tuple(sorted(set(sizes)))
    assert (sizes[0], sizes[-1]) == (1, max_rows)
    assert all(after <= 2 * before for before, after in pairwise(sizes))


def test_rows_without_a_sequence_write_into_spare_slots_of_their_own() -> None:
    shape = DecodeShape(MAX_ROWS, KV_HEADS, BLOCK, first_spare=NUM_BLOCKS, device=CPU)
    inputs = DecodeStepInputs(shape)
    read = StepInputs.of(inputs.metadata, kv_heads=KV_HEADS)
    first_spare = NUM_BLOCKS * BLOCK * KV_HEADS
    spare = list(range(first_spare, first_spare + num_spare_blocks(MAX_ROWS, BLOCK) * 8))

    for contexts in ((1, 4, 5, 8), (2, 6), (3, 3, 3, 3, 3)):
        step = decodes(*contexts)
        inputs.load(step)

        own = StepInputs.of(step, kv_heads=KV_HEADS)
        slots = read.slots.tolist()
        assert slots[: len(own.slots)] == own.slots.tolist()
        assert set(slots[len(own.slots) :]) <= set(spare)
        assert len(set(slots)) == len(slots)
        assert read.positions[: len(contexts)].tolist() == [each - 1 for each in contexts]


@pytest.fixture
def _operators() -> Iterator[None]:
    with operators_on_cpu(), any_size():
        yield


def cache_of(decoder: Decoder, num_blocks: int = NUM_BLOCKS) -> KVCache:
    every = num_blocks + num_spare_blocks(MAX_ROWS, BLOCK)
    return allocate_kv_cache(decoder.cache_layout(BLOCK), num_blocks=every, device="cpu")


@pytest.mark.usefixtures("_operators")
def test_a_block_that_begins_is_wiped_and_no_other_is_written(
    make_checkpoint: Callable[..., Path],
) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM")
    decoder = load_decoder(folder, runtime=NpuOnCpu(memory_bytes=1 << 30), max_positions=64)
    cache = cache_of(decoder)
    step = decodes(1, 4, 5)
    blocks = cache.blocks

    with torch.inference_mode():
        decoder.record_graphs(cache, max_rows=MAX_ROWS)
        blocks[:, :, :NUM_BLOCKS] = torch.nan
        # What the second and the third row have computed before.
        blocks[:, :, 2, :, :3] = blocks[:, :, 4] = 0.5
        logits = decoder.forward(torch.tensor([5, 6, 7]), cache, step, logits_rows=torch.arange(3))

    assert logits.isfinite().all()
    written = ~blocks[:, :, :NUM_BLOCKS].isnan().flatten(3).any(dim=(0, 1, 3))
    assert written.tolist() == [block in {0, 2, 4, 5} for block in range(NUM_BLOCKS)]
    # The rest of a block that begins.
    assert not blocks[:, :, 0, :, 1:].any()
    assert not blocks[:, :, 5, :, 1:].any()


@pytest.mark.usefixtures("_operators")
@pytest.mark.parametrize(("has_collectives", "a_layer", "beside"), [(False, 2, 1), (True, 4, 2)])
def test_a_layer_is_a_graph_and_attention_and_sums_cut_it(
    make_checkpoint: Callable[..., Path], *, has_collectives: bool, a_layer: int, beside: int
) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", num_hidden_layers=3)
    kernels = RecordedKernels()
    runtime = NpuOnCpu(memory_bytes=1 << 30)
    runtime.kernels = kernels
    decoder = load_decoder(folder, runtime=runtime, max_positions=64)
    cache = cache_of(decoder, num_blocks=2 * MAX_ROWS + 2)
    with torch.inference_mode():
        graphs = DecodeGraphs(
            decoder.packed_model,
            kernels,
            kernels.graphs(),
            cache=cache,
            max_rows=MAX_ROWS,
            has_collectives=has_collectives,
        )

    for num_rows in (MAX_ROWS, MAX_ROWS + 1):
        step = KernelStep(
            token_ids=torch.zeros(num_rows, dtype=torch.int64),
            cache=cache.layers,
            metadata=decodes(*[1] * num_rows),
            logits_rows=torch.arange(num_rows),
            num_rows=num_rows,
        )
        with torch.inference_mode():
            # More rows come by a live change of maxBatchSize.
            assert (graphs.stages(step) is None) == (num_rows > MAX_ROWS)
    assert graphs.sizes == (1, 2, 4, MAX_ROWS)
    # Attention is no graph; each size has its own.
    assert len(kernels.recorded) == 4 * ((a_layer - 1) * 3 + beside)


def test_a_device_without_graphs_says_so(make_checkpoint: Callable[..., Path]) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM")
    decoder = load_decoder(folder, runtime=CpuRuntime(memory_bytes=1 << 30), max_positions=64)

    with pytest.raises(ConfigError, match=r"device cpu has no graphs .*; leave graph out"):
        decoder.record_graphs(cache_of(decoder), max_rows=MAX_ROWS)
