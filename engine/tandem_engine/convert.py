"""From a checkpoint in float to one in 8 bits: what `tandem quantize` does."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from tandem_engine.api.errors import CheckpointError
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.documents import CONFIG_FILE, read_object
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.model.parameters import allocate_parameters, checkpoint_parts, is_harmless
from tandem_engine.model.quantized import QuantizedLinear
from tandem_engine.model.tied_head import EMBEDDING
from tandem_engine.quantization.compressed_tensors import compressed_tensors_config
from tandem_engine.quantization.int8 import quantize_rows, relative_error
from tandem_engine.quantization.modelslim import DESCRIPTION_FILE, modelslim_description
from tandem_engine.quantization.read import read_scheme
from tandem_engine.quantization.scheme import AT_LOAD_SCHEME, HEAD, Format, LinearKind, Scheme
from tandem_engine.weights.checkpoint import Checkpoint
from tandem_engine.weights.fill import Progress, check
from tandem_engine.weights.write import SHARD_BYTES, NewTensor, write_tensors

OutputFormat = Literal["compressed-tensors", "msmodelslim"]
_STEMS: Final = {
    "compressed-tensors": "model",
    "msmodelslim": "quant_model_weight_w8a8_dynamic",
}
_COPIED: Final = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "LICENSE*", "NOTICE*")
_INDEX: Final = ".index.json"


@dataclass(frozen=True, slots=True)
class LayerError:
    """The error of one layer in 8 bits."""

    name: str
    shape: tuple[int, ...]
    """[out, in]."""
    error: float
    """‖weight - quantised‖ / ‖weight‖ in the Frobenius norm."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Sizes and errors of a checkpoint that was written."""

    bytes_before: int
    """Tensors of the checkpoint in float."""
    bytes_after: int
    """Tensors of the one in 8 bits."""
    layers: tuple[LayerError, ...]
    """The worst first."""


def quantize_checkpoint(
    source: Path,
    target: Path,
    *,
    output_format: OutputFormat = "compressed-tensors",
    head: bool = False,
    progress: Progress | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Conversion:
    """Write a copy of the checkpoint in `source` with linear layers in 8 bits.

    `target` is there when all of it is written, or not at all. Memory holds one tensor at a time.

    Args:
        source: Folder of a checkpoint in float.
        target: Folder to write; it may be there if it is empty.
        output_format: How the new one says that it is in 8 bits.
        head: True when the output head is in 8 bits, too. One that is tied to the embedding becomes
            a tensor of its own.
        progress: Called with the bytes of `source` that are done, and those that there are.
        shard_bytes: Size of a file of weights, at most.

    Raises:
        CheckpointError: `source` is damaged, not understood or in 8 bits already, or `target` is
            there, or has too little room; nothing is written then.
    """
    _refuse_target(source, target)
    config = read_decoder_config(source)
    scheme = read_scheme(source)
    if scheme.is_quantized:
        raise CheckpointError(
            f"{source} is {scheme.format} already; name the checkpoint in float that it was made of"
        )
    with Checkpoint.open(source) as checkpoint:
        job = _Job(checkpoint, config, output_format=output_format, head=head)
        _refuse_small_disk(target, job.bytes_after)
        with _written_whole(target) as folder:
            _copy_others(source, folder)
            _write_descriptions(source, folder, job, output_format, head=head)
            tensors = job.tensors(progress or (lambda _done, _total: None))
            stem = _STEMS[output_format]
            write_tensors(folder, stem, job.plan, tensors, shard_bytes=shard_bytes)
    layers = tuple(sorted(job.layers, key=lambda layer: layer.error, reverse=True))
    return Conversion(job.bytes_before, job.bytes_after, layers)


class _Job:
    """The tensors to write, and their sources."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: DecoderConfig,
        *,
        output_format: OutputFormat,
        head: bool,
    ) -> None:
        self._checkpoint = checkpoint
        self._has_offsets = output_format == "msmodelslim"
        linears = _check(checkpoint, config, head=head)
        self.unties = head and config.tie_word_embeddings
        self.stays_tied = config.tie_word_embeddings and not head
        self._table = f"{config.embedding}.weight"
        names = sorted(checkpoint.names(), key=checkpoint.file_position)
        if config.tie_word_embeddings:
            names = [name for name in names if name == self._table or name != f"{HEAD}.weight"]
        stems = {f"{linear}.weight": linear for linear in linears}
        self._steps = [(name, stems.get(name)) for name in names]
        if self.unties:
            self._steps.append((self._table, HEAD))
        self.plan = [tensor for step in self._steps for tensor in self._planned(*step)]
        self.bytes_before = sum(checkpoint.entry(name).num_bytes for name in names)
        self.bytes_after = sum(tensor.num_bytes for tensor in self.plan)
        self.layers: list[LayerError] = []

    def kinds(self) -> dict[str, LinearKind]:
        """The kind of every tensor that is written."""
        return {
            tensor.name: LinearKind.FLOAT if stem is None else LinearKind.DYNAMIC
            for name, stem in self._steps
            for tensor in self._planned(name, stem)
        }

    def tensors(self, progress: Progress) -> Iterator[Tensor]:
        """The tensors of the plan, each made when it is asked for."""
        total = sum(self._checkpoint.entry(name).num_bytes for name, _ in self._steps)
        done = 0
        progress(done, total)
        for name, stem in self._steps:
            made = self._kept(name) if stem is None else self._quantized(name, stem)
            done += self._checkpoint.entry(name).num_bytes
            # Before they are handed out: the generator is not resumed after the last one.
            progress(done, total)
            yield from made

    def _planned(self, name: str, stem: str | None) -> Iterator[NewTensor]:
        entry = self._checkpoint.entry(name)
        if stem is None:
            _ = entry.dtype  # refuses one that is not known
            written = f"{EMBEDDING}.weight" if name == self._table else name
            yield NewTensor(written, entry.dtype_name, entry.shape)
            return
        column = (entry.shape[0], 1)
        yield NewTensor(f"{stem}.weight", "I8", entry.shape)
        yield NewTensor(f"{stem}.weight_scale", "F32", column)
        if self._has_offsets:
            yield NewTensor(f"{stem}.weight_offset", "F32", column)

    def _kept(self, name: str) -> list[Tensor]:
        entry = self._checkpoint.entry(name)
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        self._checkpoint.copy(name, tensor)
        return [tensor]

    def _quantized(self, name: str, stem: str) -> list[Tensor]:
        shape = self._checkpoint.entry(name).shape
        values, scales = torch.empty(shape, dtype=torch.int8), torch.empty(shape[0])

        def take(weight: Tensor) -> None:
            quantize_rows(weight, values=values, scales=scales)
            self.layers.append(LayerError(stem, shape, relative_error(weight, values, scales)))

        self._checkpoint.hand_over(name, take)
        offsets = [torch.zeros(shape[0], 1)] if self._has_offsets else []
        return [values, scales.unsqueeze(1), *offsets]


def _check(checkpoint: Checkpoint, config: DecoderConfig, *, head: bool) -> set[str]:
    """Make sure that the checkpoint is whole; return the names of the layers to quantise."""
    every = Scheme(Format.AT_LOAD, lambda _: LinearKind.DYNAMIC)
    scheme = every if head else AT_LOAD_SCHEME
    # On this device tensors have shapes and no memory.
    parameters = allocate_parameters(
        config,
        dtype=torch.float32,
        device="meta",
        kernels=ReferenceKernels(),
        scheme=scheme,
    )
    check(
        checkpoint,
        list(checkpoint_parts(parameters)),
        is_harmless=lambda name: is_harmless(config, parameters, name),
    )
    return {
        name
        for linear in parameters.linears()
        if isinstance(linear, QuantizedLinear)
        for name in linear.names
    }


def _refuse_target(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise CheckpointError(f"{source} is not a folder; name the folder of a checkpoint")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            f"{target} exists already and is not overwritten; name another folder, "
            "or remove it first"
        )


def _refuse_small_disk(target: Path, needed: int) -> None:
    parent = next(parent for parent in target.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise CheckpointError(
            f"{target} needs {needed / 2**20:.0f} MiB, and {parent} has {free / 2**20:.0f} MiB "
            "left; make room, or name a folder on another disk"
        )


@contextmanager
def _written_whole(target: Path) -> Iterator[Path]:
    """A folder beside `target` that replaces it when all went well, and else disappears."""
    target = target.absolute()
    folder = target.with_name(f".{target.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    folder.mkdir(parents=True)
    try:
        yield folder
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_others(source: Path, folder: Path) -> None:
    """Tokenizer, chat template, generation settings, licence."""
    for path in {path for pattern in _COPIED for path in source.glob(pattern)}:
        if path.is_file() and path.name != CONFIG_FILE and not path.name.endswith(_INDEX):
            shutil.copyfile(path, folder / path.name)


def _write_descriptions(
    source: Path, folder: Path, job: _Job, output_format: OutputFormat, *, head: bool
) -> None:
    document = read_object(source / CONFIG_FILE)
    if not job.stays_tied:
        document["tie_word_embeddings"] = False
    if output_format == "compressed-tensors":
        document["quantization_config"] = compressed_tensors_config(head=head)
    else:
        _write_json(folder / DESCRIPTION_FILE, modelslim_description(job.kinds()))
    _write_json(folder / CONFIG_FILE, document)


def _write_json(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")
