"""The pretended device finds what a host with one memory cannot show."""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.host_memory import HostCopy, HostInts, ints_to_device, to_device
from tandem_engine.microbatch.cut import Cut, cut
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.dp_batches import DPBatches
from tandem_engine.runner.micro_batch_control import EVERY_STEP
from tandem_engine.runner.micro_batches import MicroBatches, rows_of
from tandem_engine.runner.prompt_scoring import PromptScoring
from tandem_engine.runner.rank_batches import RankBatches, columns_of
from tandem_engine.runner.rank_messages import StepEncoder
from tandem_engine.sampling.logprobs import logprobs_of
from tests.pretended_device.process import Run, device_process
from tests.pretended_device.queue import DeviceError
from tests.pretended_device.tensors import QUEUE, DeviceTensor, current_stream
from tests.unit.engine.test_sampling import row

NPU = "npu"


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with device_process() as process:
        yield process


def waits_of(work: Callable[[], object]) -> int:
    """Times that the host waits meanwhile."""
    QUEUE.waits.clear()
    work()
    return sum(QUEUE.waits.values())


def error_of(work: Callable[[], object]) -> str:
    with pytest.raises(DeviceError) as raised:
        work()
    return str(raised.value)


def numbers() -> Tensor:
    return torch.arange(6.0).view(2, 3).to(NPU)


def changed(x: Tensor) -> Tensor:
    """Make a tensor, look at part of it, and write into that."""
    y = torch.cat((x, x @ x.T @ x))[1:, :2] * 2
    y[0] += 1.0
    y.index_fill_(0, torch.tensor([1], device=x.device), -3.0)
    return y


def computes() -> None:
    x = numbers()
    assert isinstance(x, DeviceTensor)
    assert str(x.device) == "npu:0"
    assert torch.equal(changed(x).cpu(), changed(x.cpu()))


def mixes() -> str:
    return error_of(lambda: numbers() + torch.ones(2, 3))


def test_it_computes_in_memory_of_its_own(run: Run) -> None:
    run(computes)

    assert run(mixes) == "aten::add has an argument (2, 3) that is on the host"


def counted() -> dict[str, int]:
    x, mask = numbers(), numbers() > 2
    at = torch.tensor([1], device=NPU)
    return {
        "what stays there": waits_of(lambda: (x + 1)[at].masked_fill_(mask[:1], 0)),
        "a number": waits_of(x[0, 0].item),
        "a decision": waits_of(lambda: bool((x > 2).all())),
        "all": waits_of(x.cpu),
        "a shape": waits_of(lambda: x[mask]),
        "a list of indices": waits_of(lambda: x[[1, 0]]),
        "a list": waits_of(lambda: torch.tensor([1, 2], device=NPU)),
        "pageable": waits_of(lambda: torch.ones(2).to(NPU, non_blocking=True)),
        "pinned": waits_of(lambda: torch.ones(2).pin_memory().to(NPU, non_blocking=True)),
    }


def test_it_counts_what_the_host_waits_for(run: Run) -> None:
    assert run(counted) == {
        "what stays there": 0,
        "a number": 1,
        "a decision": 1,
        "all": 1,
        "a shape": 1,
        "a list of indices": 1,
        "a list": 1,
        "pageable": 1,
        "pinned": 0,
    }


def reads_early() -> tuple[list[int], list[int]]:
    host = torch.zeros(2, dtype=torch.int64, pin_memory=True)
    host.copy_(torch.tensor([3, 4], device=NPU), non_blocking=True)
    early = host.tolist()
    current_stream().synchronize()
    return early, host.tolist()


def writes_early() -> str:
    host = torch.ones(2).pin_memory()
    host.to(NPU, non_blocking=True)
    host.fill_(5.0)
    return error_of(current_stream().synchronize)


def sends_back() -> tuple[list[float], list[float]]:
    host = torch.zeros(2, pin_memory=True)
    host.copy_(torch.tensor([3.0, 4.0], device=NPU), non_blocking=True)
    there = host.to(NPU, non_blocking=True)
    return there.tolist(), host.tolist()


def test_copies_that_are_not_waited_for_are_late(run: Run) -> None:
    early, late = run(reads_early)
    assert early != late == [3, 4]

    assert run(writes_early) == "the host changed torch.float32 (2,) while the device copied it"
    # What goes out and comes in again is in order, on the device.
    assert run(sends_back) == ([3.0, 4.0], [3.0, 4.0])


def copies_back() -> tuple[list[int], Counter[str], list[int]]:
    QUEUE.waits.clear()
    array = np.array([7, 8])
    there, more = to_device(array, NPU), ints_to_device([1, 2], NPU)
    array[:] = 0
    copy = HostCopy(there + more)
    more.fill_(9)
    return copy.wait().tolist(), Counter(QUEUE.waits), more.tolist()


def waits_for_its_own() -> tuple[list[int], list[int]]:
    first = HostCopy(ints_to_device([1], NPU))
    second = HostCopy(ints_to_device([2], NPU))
    own = first.wait().tolist()
    return own, second._values.tolist()


def test_numbers_go_to_a_device_and_back_with_one_wait(run: Run) -> None:
    values, waits, changed = run(copies_back)

    assert (values, changed) == ([8, 10], [9, 9])
    assert waits == {"device.host_memory.wait": 1}


def test_a_copy_to_the_host_waits_for_nothing_that_is_queued_behind_it(run: Run) -> None:
    own, later = run(waits_for_its_own)

    assert own == [1]
    assert later != [2]


def test_on_a_host_numbers_stay_where_they_are() -> None:
    array = np.array([7, 8])

    tensor = to_device(array, "cpu")
    array[:] = 1

    assert tensor.tolist() == [1, 1]
    assert HostCopy(tensor).wait() is tensor
    # As where the sizes of a model are tried without its numbers.
    assert to_device(array, "meta").is_meta


def batch_of(*, is_scored: bool = False) -> FlatBatch:
    """Two decodes and two chunks on the device; blocks of two dp ranks."""
    query_lens, tables = [1, 1, 24, 16], [[0, 1], [8], [2, 3, 4], [9, 10]]
    device = torch.device(NPU)
    at = HostInts.of([30, 31], device)
    return FlatBatch(
        token_ids=ints_to_device(range(42), device),
        attention=build_attention_metadata(
            query_lens=query_lens,
            context_lens=[9, 5, 24, 16],
            block_tables=tables,
            block_size=8,
            device=device,
        ),
        yield_at=HostInts.of([0, 1, 25, 41], device),
        yielding=(),
        drafts={},
        sequence_ids=["a", "b", "c", "d"],
        block_tables=tables,
        scoring=PromptScoring(at=at, token_ids=at, num_top=1) if is_scored else None,
    )


def waits_of_ranks() -> dict[str, int]:
    batch, scored = batch_of(), batch_of(is_scored=True)
    columns = columns_of(scored)
    other = RankBatches(block_size=8, device=torch.device(NPU))
    message = StepEncoder().batch(columns)
    outcome = cut(rows_of(batch), EVERY_STEP)
    assert isinstance(outcome, Cut)
    return {
        "what rank 0 hands on": waits_of(lambda: columns_of(scored)),
        "what another rank makes of it": waits_of(lambda: other.decode(message)),
        "rows": waits_of(lambda: rows_of(batch)),
        "halves": waits_of(lambda: MicroBatches.of(batch, outcome)),
        "a dp rank's part": waits_of(lambda: DPBatches(dp=2, dp_rank=1, num_blocks=8).part(scored)),
    }


def test_ranks_lay_steps_out_without_waiting(run: Run) -> None:
    waits = run(waits_of_ranks)

    # For the tokens: those of the step before may not be known to the host yet.
    assert waits.pop("what rank 0 hands on") == 1
    assert set(waits.values()) == {0}


def logprobs_and_waits() -> tuple[bool, int]:
    """Whether log-probabilities are those of the host, and waits for them behind the tokens."""
    rows = [row(logprobs=3), row(), row(logprobs=0)]
    logits, tokens = torch.randn(3, 50), torch.tensor([4, 5, 6])
    expected = logprobs_of(logits, tokens, rows).read(tokens.tolist())
    there = tokens.to(NPU)
    pending = logprobs_of(logits.to(NPU), there, rows)
    token_ids = HostCopy(there).wait().tolist()
    QUEUE.waits.clear()
    return pending.read(token_ids) == expected, sum(QUEUE.waits.values())


def test_logprobs_come_with_the_tokens(run: Run) -> None:
    assert run(logprobs_and_waits) == (True, 0)
