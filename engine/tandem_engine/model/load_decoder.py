"""Loads a checkpoint's folder into a decoder on a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tandem_engine.api.config import DType, Quantization
from tandem_engine.api.errors import CheckpointError
from tandem_engine.device.packed_model import PackedModel
from tandem_engine.device.packing import ShapesOnly
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.documents import CONFIG_FILE
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.parameters import (
    Parameters,
    allocate_parameters,
    checkpoint_parts,
    is_harmless,
)
from tandem_engine.model.quantized import QuantizedLinear
from tandem_engine.model.rope import RopeTable
from tandem_engine.parallel.plan import ParallelShape, plan_rank
from tandem_engine.quantization.read import resolve_scheme
from tandem_engine.quantization.scheme import HEAD, Scheme
from tandem_engine.weights.checkpoint import Checkpoint
from tandem_engine.weights.fill import Progress, check, fill

_MIB = 2**20


def load_decoder(
    folder: Path | str,
    *,
    dtype: DType = "auto",
    quantization: Quantization = "auto",
    runtime: DeviceRuntime,
    max_positions: int | None = None,
    progress: Progress | None = None,
    shape: ParallelShape | None = None,
    rank: int = 0,
) -> Decoder:
    """Read a checkpoint in Hugging Face layout into a decoder on `runtime`'s device.

    Tensors go from the file straight into the form that the device's kernels read: the host holds
    them at most once (not at all for another device), and one tensor besides. Weights that are
    quantised here are held in 8 bits only.

    Args:
        folder: Holds config.json and the weights in safetensors.
        dtype: Of the parameters; auto takes the checkpoint's.
        quantization: Precision of the linear layers; auto: 8 bits if the checkpoint's are.
        runtime: Where the parameters go.
        max_positions: Tokens that a sequence may have; None takes the checkpoint's limit.
        progress: Called with bytes done and bytes in all as tensors arrive.
        shape: The ranks that share the model; None: this process has all of it.
        rank: The one to load; only its slices are read.

    Raises:
        CheckpointError: A file is missing, damaged or of a kind that is not understood.
        ConfigError: The weights are in 8 bits, and `quantization` is none; or the model cannot be
            cut into `shape`.
    """
    config = read_decoder_config(folder)
    plan = plan_rank(shape or ParallelShape(), config, rank)
    scheme = resolve_scheme(quantization, folder)
    with Checkpoint.open(folder) as checkpoint:
        torch_dtype = _resolve_dtype(dtype, config, checkpoint)
        known = _check(checkpoint, config, scheme)
        parameters = allocate_parameters(
            config,
            dtype=torch_dtype,
            device=runtime.device,
            kernels=runtime.kernels,
            scheme=scheme,
            plan=plan,
        )
        fill(
            checkpoint,
            list(checkpoint_parts(parameters, frozenset(checkpoint.names()))),
            is_harmless=lambda name: name in known or is_harmless(config, parameters, name),
            progress=progress,
        )
    with _naming(Path(folder) / CONFIG_FILE):
        rope = RopeTable(
            config.rope,
            head_dim=config.head_dim,
            num_positions=max_positions or config.max_position_embeddings,
            dtype=runtime.kernels.computed_in(torch_dtype),
            device=runtime.device,
        )
    with _naming(folder):
        packed_model = pack_model(config, parameters, rope)
    return Decoder(
        config,
        packed_model,
        runtime.kernels,
        quantization=_describe(scheme, parameters),
        plan=plan,
    )


def _check(checkpoint: Checkpoint, config: DecoderConfig, scheme: Scheme) -> frozenset[str]:
    """Make sure that config.json describes these tensors, before any memory is taken for them.

    Returns:
        Names of the tensors of the whole model, of which a rank reads some only.
    """
    names = frozenset(checkpoint.names())
    last = f"model.layers.{config.num_layers - 1}"
    if not any(name.startswith(f"{last}.") for name in names):
        checkpoint.entry(f"{last}.input_layernorm.weight")  # raises: it is missing
    _check_head(checkpoint, config)
    layout = allocate_parameters(
        config, dtype=torch.bfloat16, device="meta", kernels=ShapesOnly(), scheme=scheme
    )
    parts = list(checkpoint_parts(layout, names))
    check(checkpoint, parts, is_harmless=lambda name: is_harmless(config, layout, name))
    skipped = (linear.skipped for linear in layout.linears() if isinstance(linear, QuantizedLinear))
    return frozenset(part.name for part in parts).union(*skipped)


def _check_head(checkpoint: Checkpoint, config: DecoderConfig) -> None:
    """Refuse a checkpoint of which the head is missing; config.json may just not tie it."""
    try:
        if not config.tie_word_embeddings:
            checkpoint.entry(f"{HEAD}.weight")
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; where the output head is the embedding, {checkpoint.folder / CONFIG_FILE} "
            "has to say tie_word_embeddings: true"
        ) from error


@contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Name the file or folder in errors that are raised within."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _describe(scheme: Scheme, parameters: Parameters) -> str | None:
    """The line that the log of the start shows; None: nothing is quantised."""
    quantized = [linear for linear in parameters.linears() if isinstance(linear, QuantizedLinear)]
    if not quantized:
        return None
    count = sum(len(linear.names) for linear in quantized)
    total = sum(len(linear.names) for linear in parameters.linears())
    size = sum(linear.num_bytes for linear in quantized)
    return (
        f"Quantization: W8A8, {count} of {total} linear layers in 8 bits "
        f"({size / _MIB:.1f} MiB), of {scheme.format}"
    )


def _resolve_dtype(requested: DType, config: DecoderConfig, checkpoint: Checkpoint) -> torch.dtype:
    name = config.dtype if requested == "auto" else requested
    if name is None:
        return checkpoint.entry(f"{config.embedding}.weight").dtype
    resolved = getattr(torch, name)
    assert isinstance(resolved, torch.dtype), "names of dtypes are torch's; this is a bug"  # noqa: S101
    return resolved


def pack_model(config: DecoderConfig, parameters: Parameters, rope: RopeTable) -> PackedModel:
    """Finish the packing of all linear layers.

    Raises:
        CheckpointError: A layer in 8 bits has scales or offsets that are not computed.
    """
    layers = tuple(layer.finished() for layer in parameters.layers)
    head = None if parameters.head is None else parameters.head.finished()
    plan, embedding = parameters.plan, parameters.embedding
    return PackedModel(
        num_heads=len(plan.heads),
        num_kv_heads=len(plan.kv_heads),
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=len(plan.intermediate),
        vocab_size=plan.vocab_width,
        vocab=plan.vocab if plan.num_tp > 1 else None,
        dtype=parameters.dtype,
        eps=config.rms_norm_eps,
        rope=rope.table,
        embedding=head if embedding is None and plan.is_first_stage else embedding,
        layers=layers,
        norm=parameters.norm,
        head=head,
    )
