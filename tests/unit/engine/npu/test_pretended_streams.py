"""The pretended device finds work that no event orders, and memory that is handed out too early."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tandem_engine.device.torch_streams import Accelerator, TorchStream
from tests.npu.operators import any_size, operators_on_cpu
from tests.pretended_device.order import OrderError
from tests.pretended_device.process import Run, device_process
from tests.pretended_device.tensors import QUEUE, Event, Stream, current_stream

NPU = "npu"
SUM = "aten::sum of device.torch_streams.run"


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with device_process() as process:
        yield process


def faults() -> list[str]:
    """Return what was found since the last call."""
    try:
        QUEUE.order.check()
    except OrderError as error:
        return str(error).splitlines()
    return []


def ones() -> Tensor:
    return torch.ones(4, 2, device=NPU)


def behind(first: TorchStream, second: TorchStream, work: Callable[[], object]) -> list[str]:
    """Do work in the second stream without and with an event; return what each finds."""
    second.run(work)
    early = faults()
    second.run(work, after=[first.run(lambda: None)])
    assert faults() == []
    return early


def orders() -> dict[str, list[str]]:
    accelerator = Accelerator(torch.device(NPU))
    first, second = accelerator.current_stream("first"), accelerator.stream("second")
    x = ones()
    found = {"reads": behind(first, second, x.sum)}
    y = x + 1
    found["writes"] = behind(first, second, lambda: y.add_(1))
    z = ones()
    Event().record()
    current_stream().synchronize()
    second.run(z.sum)
    found["the host has waited"] = faults()
    z.zero_()
    found["is read"] = faults()
    second.close()
    return found


def test_work_of_two_streams_needs_an_event(run: Run) -> None:
    assert run(orders) == {
        "reads": [f"{SUM} may read what is not yet written by aten::fill_ of a test"],
        "writes": ["aten::add_ of device.torch_streams.run may write before aten::add of a test"],
        "the host has waited": [],
        "is read": [f"aten::zero_ of a test may write what is still to be read by {SUM}"],
    }


def parts() -> dict[str, list[str]]:
    other = Stream()
    x = torch.zeros(4, 2, device=NPU)
    current_stream().synchronize()
    found = {}
    with other:
        x[2:].fill_(1.0)
    x[:2].fill_(1.0)
    found["rows apart"] = faults()
    x[1:3].fill_(1.0)
    found["rows of both"] = faults()
    other.synchronize()
    return found


def test_parts_of_a_tensor_are_in_no_order(run: Run) -> None:
    assert run(parts) == {
        "rows apart": [],
        "rows of both": ["aten::fill_ of a test may write before aten::fill_ of a test"],
    }


def hands_out(*, is_waited_for: bool) -> list[str]:
    """Have another stream read a tensor, give it back, and make another one."""
    other, written, read = Stream(), Event(), Event()
    x = ones()
    written.record()
    other.wait_event(written)
    with other:
        x.sum()
        read.record()
    del x
    if is_waited_for:
        current_stream().wait_event(read)
    ones()
    other.synchronize()
    return faults()


def test_memory_is_handed_out_to_the_stream_that_it_was_made_in(run: Run) -> None:
    assert run(hands_out, is_waited_for=False) == [
        "a test may have memory that a test gave back of aten::sum of a test"
    ]
    assert run(hands_out, is_waited_for=True) == []


def blocks() -> dict[str, list[str]]:
    other = Stream()
    k, v = (torch.zeros(8, 1, 16, 4, device=NPU) for _ in range(2))
    rows = torch.ones(2, 1, 4, device=NPU)
    slots = torch.tensor([0, 17], dtype=torch.int32, device=NPU)
    q = torch.ones(1, 1, 4, device=NPU)
    mask = torch.ones(2048, 2048, dtype=torch.bool, device=NPU).triu(1)
    tables = [torch.tensor([row], dtype=torch.int32, device=NPU) for row in ([2, 3], [1, 0])]
    current_stream().synchronize()
    found = {}
    with operators_on_cpu(), any_size():
        caches = [cache.view(8, 16, 1, 4) for cache in (k, v)]
        torch.ops.npu.npu_scatter_pa_kv_cache(rows, rows, *caches, slots, cache_mode="Norm")
        for table, name in zip(tables, ("others' blocks", "a written block"), strict=True):
            with other:
                torch.ops.npu.npu_fused_infer_attention_score(
                    q,
                    k,
                    v,
                    atten_mask=mask,
                    actual_seq_lengths=[1],
                    actual_seq_lengths_kv=[20],
                    block_table=table,
                    num_heads=1,
                    num_key_value_heads=1,
                    input_layout="TND",
                    sparse_mode=3,
                    block_size=16,
                )
            found[name] = faults()
    other.synchronize()
    return found


def test_rows_of_a_kv_cache_are_apart(run: Run) -> None:
    assert run(blocks) == {
        "others' blocks": [],
        "a written block": [
            "npu::npu_fused_infer_attention_score of a test may read what is not yet written by "
            "npu::npu_scatter_pa_kv_cache of a test"
        ],
    }
