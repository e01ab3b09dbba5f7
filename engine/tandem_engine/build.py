"""From settings to a running engine: the one public factory."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.api.engine_client import EngineLimits
from tandem_engine.api.errors import ConfigError
from tandem_engine.api.micro_batch_stats import cost_line
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.rewrites import consequences
from tandem_engine.async_engine.async_engine import AsyncEngine, in_force
from tandem_engine.async_engine.capacity_watch import watch_capacity
from tandem_engine.async_engine.loop import EngineLoop
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.async_engine.micro_batch_log import MicroBatchLog
from tandem_engine.async_engine.recordings import Recordings
from tandem_engine.device.registry import open_device
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.engine import Engine
from tandem_engine.kvcache.capacity import Capacity, StepCost, in_gib, more_memory
from tandem_engine.kvcache.fit import Fit
from tandem_engine.kvcache.host import dp_host_pools
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.kvcache.pool import dp_pools
from tandem_engine.kvcache.rank_sizes import (
    RankSizes,
    bytes_of_ranks,
    fit_ranks,
    memory_in_words,
    share_of_rank,
    size_ranks,
)
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.description import describe
from tandem_engine.model.draft import check_draft
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.model.micro_batches import check_micro_batches
from tandem_engine.parallel.plan import ParallelShape, plan_rank
from tandem_engine.parallel.rank_world import World
from tandem_engine.runner.caches import CacheSizes, allocate_caches
from tandem_engine.runner.executor import Executor, LocalExecutor
from tandem_engine.runner.group_executor import GroupExecutor
from tandem_engine.runner.loaded_draft import LoadedDraft
from tandem_engine.runner.profile import profile_steps
from tandem_engine.runner.rank_group import RankGroup
from tandem_engine.runner.rank_launcher import RankLauncher
from tandem_engine.runner.rank_process import Loaded, RankMemory, RankSettings
from tandem_engine.runner.runner import ModelRunner
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.speculation.ngram_drafter import NgramDrafter

_LOG = logging.getLogger(__name__)
_MIB = 2**20
_WARM_UP_PROMPT = 32
_REPORT_EVERY_S = 0.5
_BAR_WIDTH = 24
_ANGLE_BYTES = 12
"""Of a position and value of a head, while its cosines and sines are computed."""

RANK_TIMEOUT_S = 20.0
"""The longest silence of a rank, as one that is stopped, until the replica ends: with what it takes
to notice and to end the others, less than 30 seconds. A rank that computes is not silent, and may
take thirty times as long: that the next pipeline stage waits for a long prefill is no fault."""

Report = Callable[[str], None]


def build_engine(
    config: EngineConfig,
    *,
    model_name: str = "model",
    report: Report = _LOG.info,
    launcher: RankLauncher | None = None,
    world: World | None = None,
) -> AsyncEngine:
    """Load a checkpoint, size the KV cache and start the step loop in a thread of its own.

    Args:
        config: All settings of the replica.
        model_name: The label of its metrics.
        report: Called with one line for a person at each stage of the start.
        launcher: Starts the ranks from 1 on; None: they are children of this process.
        world: Where the ranks exchange tensors; None: that of their device.

    Raises:
        CheckpointError: the checkpoint is missing, damaged or not understood.
        ConfigError: the settings do not fit the model or the memory.
    """
    codec, model, ends, sampling_defaults = describe(config, report)
    shape = ParallelShape.of(config.parallelism)
    shape.check_model(model)
    check_micro_batches(config, model)
    draft_part = check_draft(config, model)
    runtime = open_device(config.device, memory_bytes=_memory_of_a_rank(config))
    max_positions = _max_positions(config, model, shape, runtime)
    with ExitStack() as stack:
        group = _start_ranks(config, shape, runtime, max_positions, launcher=launcher, world=world)
        if group is not None:
            # Where the start fails, no rank is left.
            stack.callback(group.close)
        report(runtime.set_num_threads(config.num_threads, num_ranks=shape.world_size))
        process = runtime.memory().used
        decoder = _load(config, shape, runtime, max_positions, report)
        runtime.check_cache(_layout(config, decoder))
        draft = None
        if draft_part is not None:
            draft_part.check_cache(runtime.check_cache)
            draft = LoadedDraft.load(draft_part, config, runtime, max_positions)
            report(f"Loaded the draft model {draft_part.path}")
        memory = RankMemory.of(runtime, process=process)
        ranks = _sizes(config, decoder, runtime, memory, draft=draft, group=group)
        fits = _fit(config, decoder, ranks, report)
        runtime.begin_steps()
        capacity, num_host_blocks = size_ranks(config, ranks, fits)
        cost_of_halves = _cost_of_halves(
            config, decoder, ranks, _whole_costs(group, draft), capacity
        )
        limits = _limits(config, decoder, capacity, fits[0])
        requested = config.schedule
        in_use = in_force(requested, limits, config.slo)
        config = config.model_copy(update={"schedule": in_use})
        for consequence in consequences(in_use, config.slo, max_seq_len=limits.max_seq_len):
            report(consequence.text)
        words = capacity.in_words(
            *(rank.layout for rank in ranks),
            num_dp=shape.dp,
            num_host_blocks=num_host_blocks,
            chosen=list(_reductions(requested, max_positions, fits[0])),
        )
        report(words)
        sizes = CacheSizes(num_blocks=capacity.num_blocks, num_host_blocks=num_host_blocks)
        if group is not None:
            executor: GroupExecutor | LocalExecutor = group.join(
                decoder, sizes, cost_of_halves=cost_of_halves
            )
        else:
            executor = _executor(config, decoder, sizes)
        engine = _engine(
            config,
            executor,
            capacity,
            runtime,
            num_host_blocks=num_host_blocks,
            draft=draft,
            on_close=None if group is None else group.close,
        )
        _warm_up(engine, capacity)
        metrics = EngineMetrics(
            model_name,
            schedule=in_use,
            slo=config.slo,
            aliases=config.metric_aliases,
            parallelism=config.parallelism,
            device=runtime.facts(),
            ranks=bytes_of_ranks(
                ranks, fits, num_blocks=capacity.num_blocks, num_host_blocks=num_host_blocks
            ),
        )
        halves = None if group is None else _watched_halves(group, metrics, capacity, report)
        loop = EngineLoop(
            engine, metrics, in_use, halves, turn=nullcontext if group is None else group.turn
        )
        capacity_watch = watch_capacity(config, metrics)
        loop.start()
        # From now on the loop ends the ranks.
        stack.pop_all()
    if group is not None:
        group.watch(loop.lose)
    return AsyncEngine(
        loop,
        codec=codec,
        limits=limits,
        schedule=in_use,
        end_token_ids=ends.ids,
        sampling_defaults=sampling_defaults,
        metrics=metrics,
        recordings=Recordings(executor),
        capacity_watch=capacity_watch,
    )


def _memory_of_a_rank(config: EngineConfig) -> int | None:
    """Its share of the replica's memory; None: the device finds out."""
    num_ranks = config.parallelism.ranks
    if config.is_on_card:
        return None
    if num_ranks == 1:
        return config.memory_bytes
    # Ranks that found out for themselves would each count the same memory.
    total = config.memory_bytes or open_device(config.device).memory().total
    return total // num_ranks


def _start_ranks(
    config: EngineConfig,
    shape: ParallelShape,
    runtime: DeviceRuntime,
    max_positions: int,
    *,
    launcher: RankLauncher | None,
    world: World | None,
) -> RankGroup | None:
    """Let the other ranks begin to load the model; None: there are none."""
    if shape.world_size == 1:
        return None
    return RankGroup(
        RankSettings(
            model_path=config.model_path,
            shape=shape,
            block_size=config.schedule.cache_block_size,
            max_positions=max_positions,
            dtype=config.dtype,
            quantization=config.quantization,
            kv_cache_dtype=config.kv_cache_dtype,
            device=config.device,
            memory_bytes=None if config.is_on_card else runtime.memory().total,
            num_threads=config.num_threads,
            timeout_s=RANK_TIMEOUT_S,
            micro_batch=config.stream_options.micro_batch,
            enable_mc2=config.ccl.enable_mc2,
            graph_rows=_graph_rows(config),
        ),
        launcher=launcher,
        world=world,
    )


def _graph_rows(config: EngineConfig) -> int:
    """Most rows of a step that graphs are recorded for; 0: none are."""
    return config.schedule.max_batch_size if config.graph == "python" else 0


def _max_positions(
    config: EngineConfig, model: DecoderConfig, shape: ParallelShape, runtime: DeviceRuntime
) -> int:
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
    plans = [plan_rank(shape, model, rank) for rank in range(shape.world_size)]
    cache = CacheLayout(
        num_layers=max(len(plan.layers) for plan in plans),
        num_kv_heads=max(len(plan.kv_heads) for plan in plans),
        head_dim=model.head_dim,
        dtype="float16",
        block_size=config.schedule.cache_block_size,
    )
    of_token = cache.values_per_token + _ANGLE_BYTES * model.head_dim
    most = max(1, total // of_token)
    if config.max_seq_len is not None and max_seq_len > most:
        raise ConfigError(
            f"maxSeqLen is {max_seq_len}; keys, values and angles of such a sequence take at least "
            f"{in_gib(max_seq_len * of_token)}, and this "
            f"{'replica' if len(plans) == 1 else 'rank'}'s memory is {in_gib(total)}: "
            f"lower maxSeqLen, or {more_memory(is_on_card=config.is_on_card)}."
        )
    return min(max_seq_len, most)


def _load(
    config: EngineConfig,
    shape: ParallelShape,
    runtime: DeviceRuntime,
    max_positions: int,
    report: Report,
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
        shape=shape,
    )
    if decoder.quantization:
        report(decoder.quantization)
    return decoder


def _progress_line(done: int, total: int) -> str:
    """A progress bar as one line: it is shown wherever the replica's log is read."""
    filled = _BAR_WIDTH * done // total
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return f"Loading weights {bar} {100 * done // total} % of {total / _MIB:.1f} MiB"


def _sizes(
    config: EngineConfig,
    decoder: Decoder,
    runtime: DeviceRuntime,
    memory: RankMemory,
    *,
    draft: LoadedDraft | None,
    group: RankGroup | None,
) -> list[RankSizes]:
    """What the ranks have in their memory, and what steps cost them."""
    layout = _layout(config, decoder)
    if draft is not None:
        layout = draft.beside(layout, config.parallelism.num_dp)
    loaded = [Loaded(memory=memory, layout=layout)]
    costs: Sequence[StepCost | None] = [None] * config.parallelism.ranks
    is_measured = config.num_kv_blocks is None
    if group is not None:
        loaded += group.await_loaded()
        if is_measured:
            costs = group.profile(decoder, runtime)
    elif is_measured:
        costs = [
            profile_steps(
                decoder,
                runtime,
                block_size=layout.block_size,
                kv_dtype=decoder.kv_dtype(config.kv_cache_dtype),
            )
        ]
    first, *others = costs
    if draft is not None and first is not None:
        draft.measure(runtime, layout.block_size)
        costs = [first + draft.cost, *others]
    return [
        RankSizes(
            memory=share_of_rank(config, rank, **rank_sizes.memory._asdict()),
            layout=rank_sizes.layout,
            cost=cost,
        )
        for rank, (rank_sizes, cost) in enumerate(zip(loaded, costs, strict=True))
    ]


def _fit(
    config: EngineConfig, decoder: Decoder, ranks: Sequence[RankSizes], report: Report
) -> Sequence[Fit]:
    """Fit the settings into the memory by measured steps; take them as given where blocks are."""
    fits = fit_ranks(
        config, ranks, model_limit=decoder.max_positions, vocab_size=decoder.config.vocab_size
    )
    if config.num_kv_blocks is None:
        for rank, fitted in zip(ranks, fits, strict=True):
            report(memory_in_words(rank.memory, fitted))
    return fits


def _whole_costs(group: RankGroup | None, draft: LoadedDraft | None) -> Sequence[StepCost]:
    """Return what steps cost each rank, were none cut in two; none: they are not cut."""
    if group is None or not group.whole_costs or draft is None:
        return () if group is None else group.whole_costs
    first, *others = group.whole_costs
    return [first + draft.cost, *others]


def _cost_of_halves(
    config: EngineConfig,
    decoder: Decoder,
    ranks: Sequence[RankSizes],
    whole_costs: Sequence[StepCost],
    capacity: Capacity,
) -> int:
    """KV blocks that there would be besides, were no step cut in two."""
    if not whole_costs:
        return 0
    without = [replace(rank, cost=cost) for rank, cost in zip(ranks, whole_costs, strict=True)]
    fits = fit_ranks(
        config, without, model_limit=decoder.max_positions, vocab_size=decoder.config.vocab_size
    )
    return max(0, size_ranks(config, without, fits)[0].num_blocks - capacity.num_blocks)


def _watched_halves(
    group: RankGroup, metrics: EngineMetrics, capacity: Capacity, report: Report
) -> MicroBatchLog | None:
    """Show and log what micro-batches bring; None: they are off."""
    stats = group.micro_batch_stats()
    if stats is None:
        return None
    report(cost_line(stats, capacity.num_blocks))
    metrics.watch_micro_batches(group.micro_batch_stats)
    return MicroBatchLog(group.micro_batch_stats)


def _reductions(requested: ScheduleConfig, max_positions: int, fitted: Fit) -> Iterator[str]:
    """Report sizes that are smaller than requested, because the memory holds no more."""
    if fitted.max_seq_len < max_positions:
        yield f"maxSeqLen {fitted.max_seq_len} of the model's {max_positions}"
    if fitted.max_batch_size < requested.max_batch_size:
        yield f"maxBatchSize {fitted.max_batch_size} of {requested.max_batch_size}"


def _layout(config: EngineConfig, decoder: Decoder) -> CacheLayout:
    return decoder.cache_layout(
        config.schedule.cache_block_size, decoder.kv_dtype(config.kv_cache_dtype)
    )


def _engine(
    config: EngineConfig,
    executor: Executor,
    capacity: Capacity,
    runtime: DeviceRuntime,
    *,
    num_host_blocks: int,
    draft: LoadedDraft | None,
    on_close: Callable[[], None] | None,
) -> Engine:
    block_size, dp = capacity.block_size, config.parallelism.num_dp
    runner = ModelRunner(
        executor,
        runtime=runtime,
        block_size=block_size,
        drafter=NgramDrafter() if "ngram" in config.speculation.methods else None,
        draft_model=None
        if draft is None
        else draft.drafter(
            runtime,
            num_blocks=dp * capacity.num_blocks,
            block_size=block_size,
        ),
        on_close=on_close,
    )
    scheduler = Scheduler(
        config.schedule,
        dp_pools(dp, capacity.num_blocks, block_size),
        host=dp_host_pools(dp, num_host_blocks),
        slo=config.slo,
        speculation=config.speculation,
        draft_price=0.0 if draft is None else draft.part.token_price,
        num_stages=executor.num_stages,
    )
    return Engine(scheduler, runner)


def _executor(config: EngineConfig, decoder: Decoder, sizes: CacheSizes) -> LocalExecutor:
    """The executor of a replica of one rank."""
    layout = _layout(config, decoder)
    caches = allocate_caches(decoder, layout, sizes, graph_rows=_graph_rows(config))
    return LocalExecutor(decoder, caches.kv, host_cache=caches.host)


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
