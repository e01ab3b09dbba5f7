"""The weights of a checkpoint on disk: one safetensors file, or several under an index.

Files are mapped, not read: a tensor's pages come in when it is copied, and are given back right
after, so that the process never holds weights twice. Headers are read when the checkpoint is
opened, and every range is checked against the length of its file there: a download that was cut
off is found before the first byte is copied.

The format is read here and not by the safetensors library, whose errors do not say which tensor is
cut off, and whose map stays resident beside the copy of it. It is 8 bytes length of the header
(little endian), the header (JSON: name → dtype, shape and data_offsets, counted from the end of the
header), then the data.
https://huggingface.co/docs/safetensors/index#format
"""

import json
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from tandem_engine.api.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MODELSLIM_FILES = "quant_model_weight*.safetensors"
MODELSLIM_INDEX = "quant_model_weight*.safetensors.index.json"
LENGTH_BYTES = 8
LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors library."""
MOST_DIMENSIONS = 16
FLOATS = ("BF16", "F16", "F32")
"""The types that weights usually have."""
DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}
_COMPARED_ROWS = 4096
LFS_MARK = b"version "  # a Git LFS pointer: a few lines of text in place of the file


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file."""

    path: Path
    name: str
    dtype_name: str
    """As the file says it: BF16, F32, I64 …"""
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""
    end: int
    """First byte behind it."""

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return self.end - self.start

    @property
    def dtype(self) -> torch.dtype:
        """Raise CheckpointError for a dtype that is not among DTYPES."""
        self.check_dtype(tuple(DTYPES))
        return DTYPES[self.dtype_name]

    def of_rows(self, rows: range) -> Self:
        """The same of some rows, which lie one after another in the file."""
        of_row = self.num_bytes // max(1, self.shape[0])
        return replace(
            self,
            shape=(len(rows), *self.shape[1:]),
            start=self.start + rows.start * of_row,
            end=self.start + rows.stop * of_row,
        )

    def check_dtype(self, allowed: Sequence[str]) -> None:
        """Raise CheckpointError for a dtype that is not among `allowed`."""
        if self.dtype_name not in allowed:
            among = f"not one of {', '.join(allowed)}" if allowed[1:] else f"not {allowed[0]}"
            raise CheckpointError(
                f"{self.path}: the tensor {self.name} is of dtype {self.dtype_name}, {among}"
            )


class Checkpoint:
    """The tensors of a folder, by name. Use it as a context manager: it holds files open."""

    def __init__(self, folder: Path, entries: Mapping[str, Entry]) -> None:
        self.folder = folder
        self._entries = entries
        self._maps: dict[Path, mmap.mmap] = {}
        self._open = ExitStack()

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Read the headers of all files.

        Raises:
            CheckpointError: A file is missing, cut off, or not what its name says.
        """
        folder = Path(folder)
        file = _main_file(folder)
        if file is None:
            raise CheckpointError(
                f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}; "
                "weights are read from safetensors files only"
            )
        is_index = file.suffix == ".json"
        return cls(folder, _read_shards(file) if is_index else _read_header(file))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._maps.clear()
        self._open.close()

    def names(self) -> Iterator[str]:
        """Names of all tensors."""
        return iter(self._entries)

    def entry(self, name: str) -> Entry:
        """Location, type and shape of a tensor.

        Raises:
            CheckpointError: There is no such tensor.
        """
        if name not in self._entries:
            files = sorted({entry.path.name for entry in self._entries.values()})
            held = files[0] if len(files) == 1 else f"{INDEX_FILE} ({len(files)} files)"
            raise CheckpointError(f"{self.folder / held} lacks the tensor {name}")
        return self._entries[name]

    def path_of(self, name: str) -> Path:
        """The file that holds the tensor."""
        return self.entry(name).path

    def file_position(self, name: str) -> tuple[str, int]:
        """A key that sorts tensors as they lie on disk."""
        entry = self.entry(name)
        return str(entry.path), entry.start

    def is_same(self, name: str, other: str) -> bool:
        """True if two tensors are equal byte by byte; they are read up to the first difference."""
        entry, beside = self.entry(name), self.entry(other)
        if (entry.dtype_name, entry.shape) != (beside.dtype_name, beside.shape):
            return False
        num_rows = entry.shape[0] if entry.shape else 0
        return all(
            self._have_same_rows(name, other, range(at, min(at + _COMPARED_ROWS, num_rows)))
            for at in range(0, num_rows, _COMPARED_ROWS)
        )

    def _have_same_rows(self, name: str, other: str, rows: range) -> bool:
        outcome: list[bool] = []

        def compare(tensor: Tensor) -> None:
            self.hand_over(
                other, lambda beside: outcome.append(_equal_bytes(tensor, beside)), rows=rows
            )

        self.hand_over(name, compare, rows=rows)
        return all(outcome)

    def check(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        dtypes: Sequence[str] = FLOATS,
        is_column: bool = False,
    ) -> None:
        """Make sure that a tensor is what its taker expects.

        Args:
            name: The tensor.
            shape: Its shape.
            dtypes: Names of the types that it may have.
            is_column: True when a last dimension of 1 may follow `shape`.

        Raises:
            CheckpointError: The tensor is missing, of another shape, or of another dtype.
        """
        entry = self.entry(name)
        if entry.shape != shape and not (is_column and entry.shape == (*shape, 1)):
            raise CheckpointError(
                f"{entry.path}: the tensor {name} has the shape {list(entry.shape)}, "
                f"but config.json asks for {list(shape)}"
            )
        entry.check_dtype(dtypes)

    def copy(self, name: str, destination: Tensor) -> None:
        """Copy a tensor into `destination`, to its dtype and device."""
        self.hand_over(name, destination.copy_)

    def hand_over(
        self,
        name: str,
        take: Callable[[Tensor], object],
        *,
        rows: range | None = None,
        columns: range | None = None,
    ) -> None:
        """Call `take` with a tensor as it lies in the file; it must not keep it.

        Args:
            name: The tensor.
            take: Called with its values.
            rows: The rows to hand over; None: all. Others are not read.
            columns: The columns of a matrix; None: all. Of others, only what lies on the same
                pages is read. The tensor that is handed over is not contiguous then.
        """
        entry = self.entry(name)
        if rows is not None:
            entry = entry.of_rows(rows)
        data = self._map(entry.path)
        if len(data) < entry.end:
            raise CheckpointError(f"{entry.path} was cut off while it was read; leave it as it is")
        # The view must not live on: it reads from the map, which `__exit__` closes.
        view = torch.frombuffer(data, dtype=torch.uint8, count=entry.num_bytes, offset=entry.start)
        tensor = _typed(view, entry).view(entry.shape)
        take(tensor if columns is None else tensor[:, columns.start : columns.stop])
        _give_back(data, entry)

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            # A private map, because torch warns of memory that it may not write to.
            try:
                file = self._open.enter_context(path.open("rb"))
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:  # ValueError: it has become empty
                raise _unreadable(path, error) from error
            self._maps[path] = self._open.enter_context(data)
        return self._maps[path]


def _equal_bytes(tensor: Tensor, other: Tensor) -> bool:
    return torch.equal(tensor.view(torch.uint8), other.view(torch.uint8))


def _typed(view: Tensor, entry: Entry) -> Tensor:
    if entry.start % entry.dtype.itemsize:
        view = view.clone()  # only old files are not aligned
    return view.view(entry.dtype)


def _give_back(data: mmap.mmap, entry: Entry) -> None:
    """Drop the tensor's pages; a neighbour's on the same page are simply read again."""
    start = entry.start - entry.start % mmap.PAGESIZE
    with suppress(OSError):  # advice
        data.madvise(mmap.MADV_DONTNEED, start, entry.end - start)


def has_weights(folder: Path) -> bool:
    """True if the folder holds weights, whatever their state.

    Raises:
        CheckpointError: It holds those of several checkpoints.
    """
    return _main_file(folder) is not None


def _main_file(folder: Path) -> Path | None:
    """The one file that holds the weights, or the index of several; None: there are none."""
    for name in (SINGLE_FILE, INDEX_FILE):
        if (folder / name).exists():
            return folder / name
    return _only(folder, MODELSLIM_INDEX) or _only(folder, MODELSLIM_FILES)


def _only(folder: Path, pattern: str) -> Path | None:
    """The file of that name in `folder`, if there is one."""
    paths = sorted(folder.glob(pattern))
    if paths[1:]:
        names = ", ".join(path.name for path in paths)
        raise CheckpointError(
            f"{folder} holds {names}, and no {INDEX_FILE} or the like that says which tensor is "
            "where; leave the files of one checkpoint, with their index"
        )
    return paths[0] if paths else None


def check_readable(folder: Path) -> None:
    """Refuse a checkpoint of which a file is closed to the user that this runs as.

    Raises:
        CheckpointError: with the file and the way out.
    """
    for path in (folder, *sorted(folder.glob("*"))):
        if not os.access(path, os.R_OK):
            raise CheckpointError(
                f"{path} may not be read by user {os.getuid()}, as which this replica runs; "
                f"run: chmod -R a+rX {folder}"
            )


def _read_shards(index: Path) -> dict[str, Entry]:
    """The tensors of all files that the index names."""
    try:
        content = index.read_bytes()
    except OSError as error:
        raise _unreadable(index, error) from error
    document = _parse_json(index, content, "the index")
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) for file in weight_map.values()
    ):
        raise CheckpointError(f"{index} has no weight_map from tensors to files")
    entries: dict[str, Entry] = {}
    for file in sorted(set(weight_map.values())):
        entries |= _read_header(_shard_path(index, file))
    for name, file in weight_map.items():
        if name not in entries or entries[name].path.name != file:
            raise CheckpointError(f"{index.parent / file} lacks the tensor {name}, of {index.name}")
    return entries


def _shard_path(index: Path, file: str) -> Path:
    if Path(file).name != file or file in ("", ".."):
        raise CheckpointError(f"{index} names {file}, which is not a file beside it")
    path = index.parent / file
    if not _exists(path):
        raise CheckpointError(f"{path} does not exist, but {index.name} names it")
    return path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no name that a file can have
        return False


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    reason = error.strerror if isinstance(error, OSError) else error
    return CheckpointError(f"{path} cannot be read: {reason}")


def _read_header(path: Path) -> dict[str, Entry]:
    """Tensors of one safetensors file, every range checked against its length."""
    try:
        return _read_header_of(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _read_header_of(path: Path) -> dict[str, Entry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(LENGTH_BYTES)
        if prefix == LFS_MARK:
            raise CheckpointError(f"{path} is a Git LFS pointer, not the file; run 'git lfs pull'")
        length = int.from_bytes(prefix, "little")
        if len(prefix) < LENGTH_BYTES or length > size - LENGTH_BYTES:
            raise CheckpointError(
                f"{path} is not a safetensors file, or is cut off within its header "
                f"({size} bytes long)"
            )
        if length > LONGEST_HEADER:
            raise CheckpointError(
                f"{path} says that its header is {length} bytes long, which must be at most "
                f"{LONGEST_HEADER}; it is not a safetensors file"
            )
        header = _parse_json(path, file.read(length), "the header of a safetensors file")
    data_start = LENGTH_BYTES + length
    entries = {
        name: _entry(path, name, fields, data_start)
        for name, fields in header.items()
        if name != "__metadata__"
    }
    for entry in sorted(entries.values(), key=lambda entry: entry.end):
        if entry.end > size:
            raise CheckpointError(
                f"{path} is cut off: the tensor {entry.name} ends at byte {entry.end}, "
                f"the file at {size}"
            )
    return entries


def _parse_json(path: Path, data: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} does not hold {what}: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} does not hold {what}: it is not a JSON object")
    return document


def _entry(path: Path, name: str, fields: Any, data_start: int) -> Entry:
    match fields:
        case {
            "dtype": str(dtype_name),
            "shape": [*shape],
            "data_offsets": [int(start), int(end)],
        } if 0 <= start <= end and _is_shape(shape):
            pass
        case _:
            raise CheckpointError(f"{path}: the header does not say what the tensor {name} is")
    entry = Entry(path, name, dtype_name, tuple(shape), data_start + start, data_start + end)
    if dtype_name in DTYPES and math.prod(shape) * entry.dtype.itemsize != entry.num_bytes:
        raise CheckpointError(
            f"{path}: the tensor {name} takes {entry.num_bytes} bytes, "
            f"which is not the size of {shape} in {dtype_name}"
        )
    return entry


def _is_shape(sizes: Sequence[Any]) -> bool:
    return len(sizes) <= MOST_DIMENSIONS and all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes
    )
