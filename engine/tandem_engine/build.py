"""From settings to a running engine: the one public factory."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.api.engine_client import EngineLimits
from tandem_engine.api.errors import ConfigError
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.rewrites import consequences
from tandem_engine.async_engine.async_engine import AsyncEngine, in_force
from tandem_engine.async_engine.loop import EngineLoop
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.device.registry import open_device
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.engine import Engine
from tandem_engine.kvcache.capacity import (
    GIB,
    Capacity,
    in_gib,
    size_by_gib,
    size_by_memory,
    size_host,
)
from tandem_engine.kvcache.fit import Fit, ReplicaMemory, Requirements, fit
from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.model.config import DecoderConfig, read_decoder_config
from tandem_engine.model.decoder import Decoder, allocate_host_cache, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.runner.executor import LocalExecutor
from tandem_engine.runner.profile import profile_steps
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.text.codec import CheckpointCodec, load_codec
from tandem_engine.weights.checkpoint import check_readable

_LOG = logging.getLogger(__name__)
_MIB = 2**20
_WARM_UP_PROMPT = 32
_REPORT_EVERY_S = 0.5
_BAR_WIDTH = 24
_ANGLE_BYTES = 12
"""Of a position and value of a head, while its cosines and sines are computed."""

Report = Callable[[str], None]


def build_engine(
    config: EngineConfig, *, model_name: str = "model", report: Report = _LOG.info
) -> AsyncEngine:
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
    model = read_decoder_config(folder)
    runtime = open_device(config.device, memory_bytes=config.memory_bytes)
    max_positions = _max_positions(config, model, runtime)
    report(runtime.set_num_threads(config.num_threads))
    process = runtime.memory().used
    decoder = _load(config, runtime, max_positions, report)
    memory = _memory(config, runtime, process=process)
    fitted = _fit(config, decoder, runtime, memory, report)
    runtime.begin_steps()
    capacity = _capacity(config, decoder, memory, fitted)
    num_host_blocks = _num_host_blocks(config, decoder, memory, capacity)
    chosen = list(_reductions(config.schedule, max_positions, fitted))
    limits = _limits(config, decoder, capacity, fitted)
    config = config.model_copy(update={"schedule": in_force(config.schedule, limits, config.slo)})
    for one in consequences(config.schedule, config.slo, max_seq_len=limits.max_seq_len):
        report(one.text)
    layout = _layout(config, decoder)
    report(capacity.in_words(layout, num_host_blocks=num_host_blocks, chosen=chosen))
    engine = _engine(config, decoder, capacity, runtime, num_host_blocks=num_host_blocks)
    _warm_up(engine, capacity)
    metrics = EngineMetrics(
        model_name, schedule=config.schedule, slo=config.slo, aliases=config.metric_aliases
    )
    loop = EngineLoop(engine, metrics, config.schedule)
    loop.start()
    return AsyncEngine(
        loop,
        codec=codec,
        limits=limits,
        schedule=config.schedule,
        end_token_ids=_end_token_ids(decoder.config, codec),
        metrics=metrics,
    )


def _max_positions(config: EngineConfig, model: DecoderConfig, runtime: DeviceRuntime) -> int:
    """The longest sequence that may be requested: maxSeqLen, or else the model's limit.

    Angles are kept for each position; there is no use for more positions than the memory holds with
    their keys and values, even in 8 bits and without weights.
    """
    limit = model.max_position_embeddings
    max_seq_len = config.max_seq_len or limit
    if max_seq_len > limit:
        raise ConfigError(
            f"maxSeqLen is {max_seq_len}, the model is made for {limit} tokens at most; lower it."
        )
    if config.max_input_token_len is not None and config.max_input_token_len >= max_seq_len:
        raise ConfigError(
            f"maxInputTokenLen is {config.max_input_token_len}; it must be below maxSeqLen "
            f"{max_seq_len}, so that there is room for an answer."
        )
    total = runtime.memory().total
    cache = CacheLayout(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype="float16",
        block_size=config.schedule.cache_block_size,
    )
    of_token = cache.values_per_token + _ANGLE_BYTES * model.head_dim
    most = max(1, total // of_token)
    if config.max_seq_len is not None and max_seq_len > most:
        raise ConfigError(
            f"maxSeqLen is {max_seq_len}; keys, values and angles of such a sequence take at least "
            f"{in_gib(max_seq_len * of_token)}, and this replica's memory is {in_gib(total)}: "
            f"lower maxSeqLen, or raise resources.memory."
        )
    return min(max_seq_len, most)


def _load(
    config: EngineConfig, runtime: DeviceRuntime, max_positions: int, report: Report
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
        max_positions=max_positions,
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


def _memory(config: EngineConfig, runtime: DeviceRuntime, *, process: int) -> ReplicaMemory:
    """The memory, when the weights are in it and nothing else is."""
    memory = runtime.memory()
    return ReplicaMemory(
        total=memory.total,
        process=process,
        weights=memory.used - process,
        # On a CPU the blocks that sequences are swapped out to are of the same memory.
        host=config.cpu_mem_size * GIB,
        kv_cache=config.npu_mem_size * GIB if config.npu_mem_size > 0 else None,
    )


def _fit(
    config: EngineConfig,
    decoder: Decoder,
    runtime: DeviceRuntime,
    memory: ReplicaMemory,
    report: Report,
) -> Fit:
    """Fit the settings into `memory` by measured steps; take them as given where blocks are."""
    schedule = config.schedule
    if config.num_kv_blocks is not None:
        return Fit(
            max_seq_len=config.max_seq_len or decoder.max_positions,
            max_batch_size=schedule.max_batch_size,
            step=0,
            step_tokens=0,
        )
    layout = _layout(config, decoder)
    cost = profile_steps(
        decoder,
        runtime,
        block_size=schedule.cache_block_size,
        kv_dtype=_kv_dtype(config, decoder),
    )
    required = Requirements(
        schedule=schedule,
        model_limit=decoder.max_positions,
        max_seq_len=config.max_seq_len,
        max_input_token_len=config.max_input_token_len,
        vocab_size=decoder.config.vocab_size,
        layout=layout,
    )
    fitted = fit(required, memory, cost)
    report(
        f"Memory: {in_gib(memory.total)}, of which the process takes {in_gib(memory.process)}, "
        f"weights {in_gib(memory.weights)} and the largest step {in_gib(fitted.step)} "
        f"({fitted.step_tokens} tokens, {fitted.max_batch_size} rows)"
    )
    return fitted


def _reductions(requested: ScheduleConfig, max_positions: int, fitted: Fit) -> Iterator[str]:
    """Report sizes that are smaller than requested, because the memory holds no more."""
    if fitted.max_seq_len < max_positions:
        yield f"maxSeqLen {fitted.max_seq_len} of the model's {max_positions}"
    if fitted.max_batch_size < requested.max_batch_size:
        yield f"maxBatchSize {fitted.max_batch_size} of {requested.max_batch_size}"


def _capacity(
    config: EngineConfig, decoder: Decoder, memory: ReplicaMemory, fitted: Fit
) -> Capacity:
    layout = _layout(config, decoder)
    if config.num_kv_blocks is not None:
        return Capacity(
            num_blocks=config.num_kv_blocks,
            block_size=layout.block_size,
            max_seq_len=fitted.max_seq_len,
        ).checked(layout, available=0, activations=0)
    if config.npu_mem_size > 0:
        return size_by_gib(
            layout,
            max_seq_len=fitted.max_seq_len,
            gib=config.npu_mem_size,
            available=memory.left,
            activations=fitted.step,
        )
    return size_by_memory(
        layout,
        max_seq_len=fitted.max_seq_len,
        available=memory.left,
        activations=fitted.step,
    )


def _kv_dtype(config: EngineConfig, decoder: Decoder) -> torch.dtype:
    return torch.int8 if config.kv_cache_dtype == "int8" else decoder.dtype


def _layout(config: EngineConfig, decoder: Decoder) -> CacheLayout:
    return decoder.cache_layout(config.schedule.cache_block_size, _kv_dtype(config, decoder))


def _num_host_blocks(
    config: EngineConfig, decoder: Decoder, memory: ReplicaMemory, capacity: Capacity
) -> int:
    """Blocks for sequences that are swapped out: cpuMemSize."""
    if config.num_host_blocks is not None:
        return config.num_host_blocks
    layout = _layout(config, decoder)
    taken = capacity.num_blocks * layout.block_bytes
    return size_host(
        layout,
        gib=config.cpu_mem_size,
        available=memory.left + memory.host - taken,
    )


def _engine(
    config: EngineConfig,
    decoder: Decoder,
    capacity: Capacity,
    runtime: DeviceRuntime,
    *,
    num_host_blocks: int = 0,
) -> Engine:
    layout = _layout(config, decoder)
    kv_cache = allocate_kv_cache(layout, num_blocks=capacity.num_blocks, device=decoder.device)
    host_cache = allocate_host_cache(kv_cache, num_blocks=num_host_blocks)
    executor = LocalExecutor(decoder, kv_cache, host_cache=host_cache if num_host_blocks else None)
    runner = ModelRunner(executor, runtime=runtime, block_size=capacity.block_size)
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


def _limits(
    config: EngineConfig, decoder: Decoder, capacity: Capacity, fitted: Fit
) -> EngineLimits:
    return EngineLimits(
        max_seq_len=capacity.max_seq_len,
        max_input_token_len=config.max_input_token_len or capacity.max_seq_len - 1,
        vocab_size=decoder.config.vocab_size,
        cache_block_size=capacity.block_size,
        num_kv_blocks=capacity.num_blocks,
        max_sequences=capacity.max_sequences,
        max_batch_size=fitted.max_batch_size,
    )


def _end_token_ids(model: DecoderConfig, codec: CheckpointCodec) -> frozenset[int]:
    """The model's end tokens; the tokenizer's own when the configuration names none."""
    if model.eos_token_ids:
        return frozenset(model.eos_token_ids)
    return frozenset() if codec.end_token_id is None else frozenset({codec.end_token_id})
