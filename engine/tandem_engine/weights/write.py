"""Writing safetensors: one file, or several under an index, tensor by tensor.

The sizes of all tensors stand in front of the first, so they are planned before any is made.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import torch
from torch import Tensor

from tandem_engine.weights.checkpoint import DTYPES, LENGTH_BYTES

SHARD_BYTES: Final = 4 << 30
"""A file is closed before it grows larger, unless it holds one tensor only."""
_ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor that is to be written."""

    name: str
    dtype_name: str
    """As the file says it, one of `checkpoint.DTYPES`."""
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * DTYPES[self.dtype_name].itemsize


def write_tensors(
    folder: Path,
    stem: str,
    plan: Sequence[NewTensor],
    tensors: Iterable[Tensor],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write STEM.safetensors, or STEM-00001-of-… with STEM.safetensors.index.json.

    Args:
        folder: Where to; it exists.
        stem: Beginning of the names.
        plan: Tensors to write.
        tensors: The same in the same order; each is asked for when the one before is written.
        shard_bytes: Size of a file, at most.
    """
    shards = list(_shards(plan, shard_bytes))
    names = [
        f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
        if shards[1:]
        else f"{stem}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    source = iter(tensors)
    for name, shard in zip(names, shards, strict=True):
        with (folder / name).open("wb") as file:
            _write_header(file, shard)
            for planned in shard:
                _write(file, planned, next(source))
    if shards[1:]:
        weight_map = {
            tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        }
        total = sum(tensor.num_bytes for tensor in plan)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _shards(plan: Sequence[NewTensor], shard_bytes: int) -> Iterator[list[NewTensor]]:
    shard: list[NewTensor] = []
    size = 0
    for tensor in plan:
        if shard and size + tensor.num_bytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.num_bytes
    yield shard


def _write_header(file: BinaryIO, shard: Sequence[NewTensor]) -> None:
    # Other readers ask for the format: which library's tensors these are.
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in shard:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {
            "dtype": tensor.dtype_name,
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % _ALIGNMENT)
    file.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)


def _write(file: BinaryIO, planned: NewTensor, tensor: Tensor) -> None:
    is_as_planned = tuple(tensor.shape) == planned.shape and (
        tensor.dtype == DTYPES[planned.dtype_name]
    )
    assert is_as_planned, f"{planned.name} is not as planned; this is a bug"  # noqa: S101
    file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
