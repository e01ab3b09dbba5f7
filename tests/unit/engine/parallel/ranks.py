"""Ranks as threads of one process, with collectives over a barrier, for tests."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import torch
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata, build_attention_metadata
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.model.decoder import Decoder, KVCache, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.model.stages import drive
from tandem_engine.parallel.plan import ParallelShape
from tests.patience import HANG_S

BLOCK_SIZE = 4


class FakeGroup:
    """What the ranks of a `FakeCollectives` share."""

    def __init__(self, size: int) -> None:
        self.barrier = Barrier(size, timeout=HANG_S)
        self.given: list[tuple[str, Tensor]] = [("", torch.empty(0))] * size


class FakeCollectives:
    """Collectives of threads: each adds the others' tensors up by itself, in the order of ranks."""

    def __init__(self, group: FakeGroup, rank: int) -> None:
        self._group, self._rank = group, rank
        self.names: list[str] = []

    def all_reduce(self, tensor: Tensor) -> None:
        tensor.copy_(self._sum(self._exchange("all_reduce", tensor), tensor))

    def reduce_scatter(self, tensor: Tensor) -> None:
        total = self._sum(self._exchange("reduce_scatter", tensor), tensor)
        tensor.fill_(torch.nan)  # no other rows may be read
        tensor[self._own(tensor)] = total[self._own(tensor)]

    def all_gather(self, tensor: Tensor) -> None:
        parts = self._exchange("all_gather", tensor)
        each = len(tensor) // len(parts)
        tensor.copy_(torch.cat([part[at * each :][:each] for at, part in enumerate(parts)]))

    def gather_columns(self, tensor: Tensor, num_columns: int) -> Tensor | None:
        parts = self._exchange("gather_columns", tensor)
        return torch.cat(parts, dim=1)[:, :num_columns] if self._rank == 0 else None

    def _own(self, tensor: Tensor) -> slice:
        each = len(tensor) // len(self._group.given)
        return slice(self._rank * each, (self._rank + 1) * each)

    def _sum(self, parts: list[Tensor], like: Tensor) -> Tensor:
        return torch.stack(parts).float().sum(0).to(like.dtype)

    def _exchange(self, name: str, tensor: Tensor) -> list[Tensor]:
        """All ranks' tensors; they must ask for the same."""
        self.names.append(name)
        self._group.given[self._rank] = (name, tensor.clone())
        self._group.barrier.wait()
        given = list(self._group.given)
        self._group.barrier.wait()
        assert len({(other, part.shape) for other, part in given}) == 1, f"{given}"
        return [part for _, part in given]


class Ranks:
    """All ranks of one model: a thread for each of tp, which computes the stages of pp in turn."""

    def __init__(
        self,
        folder: Path,
        shape: ParallelShape,
        *,
        kernels: str | None = None,
        num_blocks: int = 24,
        kv_dtype: torch.dtype | None = None,
        **settings: Any,
    ) -> None:
        self.shape = shape
        runtime = CpuRuntime(memory_bytes=1 << 30, kernels=kernels)
        self.decoders = [
            load_decoder(
                folder, runtime=runtime, max_positions=256, shape=shape, rank=rank, **settings
            )
            for rank in range(shape.world_size)
        ]
        if isinstance(runtime.kernels, NativeKernels):
            assert runtime.kernels.is_native, "what the library does not compute tests torch alone"
        self.caches = [
            allocate_kv_cache(
                decoder.cache_layout(BLOCK_SIZE, kv_dtype), num_blocks=num_blocks, device="cpu"
            )
            for decoder in self.decoders
        ]
        self.names: list[list[str]] = []

    def step(
        self,
        tokens: Sequence[int],
        metadata: AttentionMetadata,
        logits_rows: Sequence[int],
        *,
        sequence_parallel: bool = False,
    ) -> list[Tensor | None]:
        """What the last pipeline stage gives on each rank of tp: logits on the first."""
        group = FakeGroup(self.shape.tp)
        collectives = [FakeCollectives(group, rank) for rank in range(self.shape.tp)]

        def compute(tp_rank: int) -> Tensor | None:
            hidden: Tensor | None = None
            with torch.inference_mode():
                for rank in self.shape.pp_group(tp_rank):
                    stages = self.decoders[rank].stages(
                        torch.tensor(tokens),
                        self.caches[rank],
                        metadata,
                        logits_rows=torch.tensor(logits_rows, dtype=torch.int64),
                        hidden=hidden,
                        sequence_parallel=sequence_parallel,
                    )
                    hidden = drive(stages, collectives[tp_rank])
            return hidden

        results = in_threads(self.shape.tp, compute, group.barrier)
        self.names = [collective.names for collective in collectives]
        return results


def in_threads(
    count: int, work: Callable[[int], Tensor | None], barrier: Barrier
) -> list[Tensor | None]:
    """Call work(number) in a thread each; raise what the first of them raised."""

    def guarded(number: int) -> Tensor | None:
        try:
            return work(number)
        except BaseException:
            barrier.abort()  # the others must not wait
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(guarded, number) for number in range(count)]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]


def layout(rows: Sequence[tuple[int, int, Sequence[int]]]) -> AttentionMetadata:
    """Of rows: new tokens, tokens before them, and their blocks."""
    return build_attention_metadata(
        query_lens=[new for new, _, _ in rows],
        context_lens=[new + before for new, before, _ in rows],
        block_tables=[blocks for _, _, blocks in rows],
        block_size=BLOCK_SIZE,
    )


def one_rank(ranks: Ranks) -> tuple[Decoder, KVCache]:
    (decoder,), (cache,) = ranks.decoders, ranks.caches
    return decoder, cache
