"""From settings to a running engine: the one public factory."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tandem_engine.api.config import EngineConfig
from tandem_engine.api.errors import ConfigError
from tandem_engine.api.front import EngineLimits
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.kv_int8 import SCALE_BYTES
from tandem_engine.device.registry import open_device
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.engine import Engine
from tandem_engine.front.front import ThreadedFront, in_force
from tandem_engine.front.loop import EngineLoop
from tandem_engine.front.metrics import EngineMetrics
from tandem_engine.kvcache.capacity import (
    GIB,
    Capacity,
    ModelShape,
    activation_bytes,
    kv_bytes_per_token,
    size_by_gib,
    size_by_memory,
    size_host,
)
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.model.decoder import Decoder, allocate_host_cache, allocate_kv_cache
from tandem_engine.model.load import load_decoder
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.text.codec import CheckpointCodec, load_codec
from tandem_engine.weights.checkpoint import check_readable

_LOG = logging.getLogger(__name__)
_MIB = 2**20
_WARM_UP_PROMPT = 32
_REPORT_EVERY_S = 0.5
_BAR_WIDTH = 24

Report = Callable[[str], None]


def build_engine(
    config: EngineConfig, *, model_name: str = "model", report: Report = _LOG.info
) -> ThreadedFront:
    """Load a checkpoint, size the KV cache and start the step loop in a thread of its own.

    Args:
        config: All settings of the replica.
        model_name: The label of its metrics.
        report: Called with one line for a person at each stage of the start.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or not understood.
        ConfigError: the settings do not fit the model or the memory.
    """
    folder = Path(config.model_path)
    if folder.is_dir():
        check_readable(folder)
    codec = load_codec(folder)
    max_seq_len = _max_seq_len(config, read_decoder_config(folder))
    runtime = open_device(config.device, memory_bytes=config.memory_bytes)
    report(runtime.set_num_threads(config.num_threads))
    decoder = _load(config, runtime, max_seq_len, report)
    runtime.begin_steps()
    capacity = _capacity(config, decoder, runtime, max_seq_len)
    num_host_blocks = _num_host_blocks(config, decoder, runtime, capacity)
    report(capacity.in_words(_shape(config, decoder), num_host_blocks=num_host_blocks))
    limits = _limits(config, decoder, capacity)
    config = config.model_copy(update={"schedule": in_force(config.schedule, limits)})
    engine = _engine(config, decoder, capacity, runtime, num_host_blocks=num_host_blocks)
    _warm_up(engine, capacity)
    metrics = EngineMetrics(model_name)
    loop = EngineLoop(engine, metrics, config.schedule)
    loop.start()
    return ThreadedFront(
        loop,
        codec=codec,
        limits=limits,
        schedule=config.schedule,
        end_token_ids=_end_token_ids(decoder.config, codec),
        metrics=metrics,
    )


def _max_seq_len(config: EngineConfig, model: DecoderConfig) -> int:
    limit = model.max_position_embeddings
    wanted = config.max_seq_len or limit
    if wanted > limit:
        raise ConfigError(
            f"maxSeqLen is {wanted}, the model is made for {limit} tokens at most; lower it."
        )
    if config.max_input_token_len is not None and config.max_input_token_len >= wanted:
        raise ConfigError(
            f"maxInputTokenLen is {config.max_input_token_len}; it must be below maxSeqLen "
            f"{wanted}, so that there is room for an answer."
        )
    return wanted


def _load(
    config: EngineConfig, runtime: DeviceRuntime, max_seq_len: int, report: Report
) -> Decoder:
    started = last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total:
            report(f"Loaded {total / _MIB:.1f} MiB of weights in {now - started:.1f} s")
        elif now - last >= _REPORT_EVERY_S:
            last = now
            report(_progress_line(done, total))

    decoder = load_decoder(
        config.model_path,
        dtype=config.dtype,
        quantization=config.quantization,
        runtime=runtime,
        max_positions=max_seq_len,
        progress=progress,
    )
    if decoder.quantization:
        report(decoder.quantization)
    return decoder


def _progress_line(done: int, total: int) -> str:
    """A progress bar as one line: it is shown wherever the replica's log is read."""
    filled = _BAR_WIDTH * done // total
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return f"Loading weights {bar} {100 * done // total} % of {total / _MIB:.1f} MiB"


def _capacity(
    config: EngineConfig, decoder: Decoder, runtime: DeviceRuntime, max_seq_len: int
) -> Capacity:
    block_size = config.schedule.cache_block_size
    shape = _shape(config, decoder)
    if config.num_kv_blocks is not None:
        return Capacity(
            num_blocks=config.num_kv_blocks, block_size=block_size, max_seq_len=max_seq_len
        ).checked(shape, available=0, activations=0)
    memory = runtime.memory()
    # The blocks that sequences are swapped out to are of the same memory on a CPU.
    available = memory.total - memory.used - config.cpu_mem_size * GIB
    activations = _largest_step(config, shape, max_seq_len)
    if config.npu_mem_size > 0:
        return size_by_gib(
            shape,
            block_size=block_size,
            max_seq_len=max_seq_len,
            gib=config.npu_mem_size,
            available=available,
            activations=activations,
        )
    return size_by_memory(
        shape,
        block_size=block_size,
        max_seq_len=max_seq_len,
        available=available,
        activations=activations,
    )


def _largest_step(config: EngineConfig, shape: ModelShape, max_seq_len: int) -> int:
    """Bytes of the activations of the largest step that the settings allow at the start."""
    schedule = config.schedule
    step_tokens = max(schedule.largest_step, max_seq_len)
    return activation_bytes(shape, step_tokens=step_tokens, rows=schedule.max_batch_size)


def _kv_dtype(config: EngineConfig, decoder: Decoder) -> torch.dtype:
    return torch.int8 if config.kv_cache_dtype == "int8" else decoder.dtype


def _shape(config: EngineConfig, decoder: Decoder) -> ModelShape:
    model, kv_dtype = decoder.config, _kv_dtype(config, decoder)
    return ModelShape(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size,
        kv_bytes_per_token=kv_bytes_per_token(
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_dim,
            dtype_bytes=kv_dtype.itemsize,
            scale_bytes=SCALE_BYTES if kv_dtype == torch.int8 else 0,
        ),
        dtype_bytes=decoder.dtype.itemsize,
        kv_dtype=str(kv_dtype).removeprefix("torch."),
    )


def _num_host_blocks(
    config: EngineConfig, decoder: Decoder, runtime: DeviceRuntime, capacity: Capacity
) -> int:
    """Blocks for sequences that are swapped out: cpuMemSize."""
    if config.num_host_blocks is not None:
        return config.num_host_blocks
    shape = _shape(config, decoder)
    memory = runtime.memory()
    taken = capacity.num_tokens * shape.kv_bytes_per_token
    return size_host(
        shape,
        block_size=capacity.block_size,
        gib=config.cpu_mem_size,
        available=memory.total - memory.used - taken,
    )


def _engine(
    config: EngineConfig,
    decoder: Decoder,
    capacity: Capacity,
    runtime: DeviceRuntime,
    *,
    num_host_blocks: int = 0,
) -> Engine:
    kv_cache = allocate_kv_cache(
        decoder.config,
        num_blocks=capacity.num_blocks,
        block_size=capacity.block_size,
        dtype=_kv_dtype(config, decoder),
        device=decoder.device,
    )
    host_cache = allocate_host_cache(kv_cache, num_blocks=num_host_blocks)
    runner = ModelRunner(
        decoder,
        kv_cache,
        runtime=runtime,
        block_size=capacity.block_size,
        host_cache=host_cache if num_host_blocks else None,
    )
    pool = BlockPool(capacity.num_blocks, capacity.block_size)
    host = HostPool(num_host_blocks)
    return Engine(Scheduler(config.schedule, pool, host=host, slo=config.slo), runner)


def _warm_up(engine: Engine, capacity: Capacity) -> None:
    """Run one short request, so that the first real one does not pay for first-use set-up."""
    num_prompt = min(_WARM_UP_PROMPT, capacity.max_seq_len - 2)
    engine.add(
        Request(
            request_id="warm-up",
            prompt_token_ids=(0,) * max(1, num_prompt),
            sampling=SamplingParams(max_tokens=2),
            max_new_tokens=min(2, capacity.max_seq_len - num_prompt),
        )
    )
    while engine.has_work:
        failed = engine.step(time.perf_counter).failed
        if failed:
            raise ConfigError(f"The model does not run: {failed['warm-up']}.")


def _limits(config: EngineConfig, decoder: Decoder, capacity: Capacity) -> EngineLimits:
    return EngineLimits(
        max_seq_len=capacity.max_seq_len,
        max_input_token_len=config.max_input_token_len or capacity.max_seq_len - 1,
        vocab_size=decoder.config.vocab_size,
        cache_block_size=capacity.block_size,
        num_kv_blocks=capacity.num_blocks,
        max_sequences=capacity.max_sequences,
    )


def _end_token_ids(model: DecoderConfig, codec: CheckpointCodec) -> frozenset[int]:
    """The model's end tokens; the tokenizer's own when the configuration names none."""
    if model.eos_token_ids:
        return frozenset(model.eos_token_ids)
    return frozenset() if codec.end_token_id is None else frozenset({codec.end_token_id})
