"""A rank other than 0: a process that loads its part of a model and computes what rank 0 says.

It talks to rank 0 on a pipe while it starts, then gets steps on a channel in shared memory. It ends
when rank 0 closes the channel, and when it cannot go on; what started it, see `rank_launcher`, ends
it when rank 0's process ends however.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, NamedTuple, Self, assert_never

import torch

from tandem_engine.api.config import DType, KVCacheDType, Quantization
from tandem_engine.api.step import Step
from tandem_engine.api.timeline import RankStep
from tandem_engine.device.registry import open_device
from tandem_engine.device.runtime import DeviceRuntime, LinearAllReduce
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.parallel.rank_world import WorldAddress
from tandem_engine.parallel.segment import SegmentAddress, SharedSegment
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.caches import CacheSizes, allocate_caches
from tandem_engine.runner.dp_batches import DPBatches
from tandem_engine.runner.dp_exchange import DPExchange
from tandem_engine.runner.profile import (
    ProfilePlan,
    StepMemory,
    first_layers,
    give_back,
    step_memory,
)
from tandem_engine.runner.rank_batches import (
    NewPrices,
    NewRecording,
    RankBatches,
    read_prices,
    read_recording,
)
from tandem_engine.runner.stage_collectives import tokens_group, world_shape
from tandem_engine.runner.step_channel import StepChannelClosed, StepReader
from tandem_engine.runner.worker import Observe, Worker

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """How the ranks of a group load one model and compute it; the same for all."""

    model_path: str
    shape: ParallelShape
    block_size: int
    """Tokens of a KV block."""
    max_positions: int | None = None
    """Tokens that a sequence may have; None: the checkpoint's limit."""
    dtype: DType = "auto"
    quantization: Quantization = "auto"
    kv_cache_dtype: KVCacheDType = "auto"
    device: str = "cpu"
    memory_bytes: int | None = None
    """Memory that each rank may use; None: the device finds out."""
    num_threads: int | None = None
    """Compute threads of all ranks together; None: one a core."""
    timeout_s: float
    """The longest silence of a rank that others wait for."""
    micro_batch: bool = False
    """Cut steps into two halves where that pays (MindIE stream_options.micro_batch)."""
    enable_mc2: bool = False
    """Multiply and add up among ranks in one operator (MindIE ccl.enable_mc2)."""
    graph_rows: int = 0
    """Most rows of a step of decodes that graphs are recorded for; 0: none are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAddress:
    """Where a rank finds rank 0."""

    process: int
    channel: SegmentAddress
    """Of the step channel."""
    world: WorldAddress
    """Of the communicator."""
    profile: SegmentAddress
    """Of the channel of the steps that are measured."""


class RankMemory(NamedTuple):
    """The memory of a rank when its weights are in it, and nothing else is; in bytes."""

    total: int
    process: int
    """Held before the weights were read."""
    weights: int

    @classmethod
    def of(cls, runtime: DeviceRuntime, *, process: int) -> Self:
        """The memory as it is now."""
        memory = runtime.memory()
        return cls(total=memory.total, process=process, weights=memory.used - process)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Report to rank 0: the rank has its weights."""

    memory: RankMemory
    layout: CacheLayout
    """Of its KV blocks."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Order of rank 0: join the world, and measure the steps of the profile."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """Report to rank 0: the rank has measured its part of each message of the profile."""

    memory: list[StepMemory]


@dataclass(frozen=True, slots=True)
class Ready:
    """Report to rank 0: the rank has joined the world, and has its KV cache."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Report to rank 0: the steps that were recorded."""

    steps: tuple[RankStep, ...]


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Report to rank 0: the rank cannot start."""

    cause: str
    """A phrase."""


def run_rank(
    connection: Connection, settings: RankSettings, address: GroupAddress, rank: int
) -> None:
    """Be a rank, until rank 0 closes the channel of steps.

    Raises:
        PeerLost: Rank 0 does not answer.
        CollectiveError: Another rank cannot go on.
        Exception: This rank cannot; all others are told.
    """
    try:
        runtime = open_device(settings.device, memory_bytes=settings.memory_bytes)
        threads = runtime.set_num_threads(
            settings.num_threads, rank=rank, num_ranks=settings.shape.world_size
        )
        _LOG.info("%s", threads)
        process = runtime.memory().used
        decoder = load_part(settings, runtime, rank)
        layout = decoder.cache_layout(
            settings.block_size, decoder.kv_dtype(settings.kv_cache_dtype)
        )
        connection.send(Loaded(RankMemory.of(runtime, process=process), layout))
        order: Profile | CacheSizes = connection.recv()
    except EOFError:
        return  # rank 0 has given the start up
    except Exception as error:
        connection.send(StartFailed(phrase_of(error)))
        raise
    world = world_shape(settings.shape)
    with closing(address.world.join(world, rank, timeout_s=settings.timeout_s)) as communicator:
        part = _RankPart(
            settings, address, rank, decoder=decoder, runtime=runtime, communicator=communicator
        )
        try:
            part.run(connection, order)
        except (EOFError, StepChannelClosed):
            return
        except Exception as error:
            communicator.abort(f"Rank {rank} cannot go on: {phrase_of(error)}; see its log.")
            raise


class _RankPart:
    """A rank that has joined the world."""

    def __init__(
        self,
        settings: RankSettings,
        address: GroupAddress,
        rank: int,
        *,
        decoder: Decoder,
        runtime: DeviceRuntime,
        communicator: Communicator,
    ) -> None:
        self._settings = settings
        self._address = address
        self._rank = rank
        self._decoder = decoder
        self._runtime = runtime
        self._communicator = communicator
        # Mapped for as long as their readers read.
        self._channels: list[SharedSegment] = []

    def run(self, connection: Connection, order: Profile | CacheSizes) -> None:
        """Do what rank 0 orders; raise StepChannelClosed at the end, and EOFError if it is gone."""
        if isinstance(order, Profile):
            connection.send(Profiled(self._profile()))
            give_back(self._runtime)
            order = connection.recv()
        if isinstance(order, Profile):
            raise TypeError("a rank measures one profile; this is a bug")
        worker = prepare_worker(self._settings, self._decoder, order)(self._communicator)
        connection.send(Ready())
        self._runtime.begin_steps()
        reader, batches = self._reader(self._address.channel), self._batches()
        with closing(worker), torch.inference_mode():
            while True:
                message = reader.receive()
                recording = read_recording(message)
                if recording is not None:
                    self._record(recording, worker, connection)
                    continue
                with self._runtime.step():
                    self._compute(read_prices(message) or batches.decode(message), worker)

    def _record(self, recording: NewRecording, worker: Worker, connection: Connection) -> None:
        """Begin to record steps, or report those that were recorded."""
        if recording.num_steps:
            worker.recorder.begin(recording.num_steps)
            return
        report = Recorded(worker.recorder.end())
        # A pipe takes a part of it until rank 0 reads; steps go on meanwhile.
        threading.Thread(target=_report, args=(connection, report), daemon=True).start()

    def _profile(self) -> list[StepMemory]:
        """Measure the rank's part of each message until the channel is closed."""
        settings, runtime = self._settings, self._runtime
        plan = ProfilePlan(self._decoder.max_positions, settings.block_size)
        kv_dtype = self._decoder.kv_dtype(settings.kv_cache_dtype)
        decoder, kv_cache = first_layers(self._decoder, runtime, plan, kv_dtype)
        worker = Worker(
            decoder,
            kv_cache,
            self._communicator,
            linear_all_reduce=linear_all_reduce_of(settings, decoder),
        )
        reader, batches = self._reader(self._address.profile), self._batches()
        measured: list[StepMemory] = []
        with closing(worker), torch.inference_mode():
            while True:
                try:
                    message = reader.receive()
                except StepChannelClosed:
                    return measured
                work = read_prices(message) or batches.decode(message)
                measured.append(step_memory(runtime, partial(self._compute, work, worker)))

    def _compute(self, work: Step | FlatBatch | NewPrices, worker: Worker) -> None:
        match work:
            case Step():
                worker.copy(work)
            case NewPrices(prices):
                worker.set_prices(prices)
            case FlatBatch(sampled=sampled):
                if sampled is not None:
                    group = tokens_group(self._settings.shape)
                    self._communicator.broadcast(sampled, 0, group)
                    work.feed_in(sampled)
                worker.compute(work)
            case _:
                assert_never(work)

    def _reader(self, address: SegmentAddress) -> StepReader:
        channel = SharedSegment.attach(address)
        self._channels.append(channel)
        timeout_s = self._settings.timeout_s
        return StepReader(
            channel.buffer,
            place=self._rank - 1,
            timeout_s=timeout_s,
            silence=self._communicator.silence_of(0),
        )

    def _batches(self) -> RankBatches:
        return RankBatches(block_size=self._settings.block_size, device=self._runtime.device)


def load_part(settings: RankSettings, runtime: DeviceRuntime, rank: int) -> Decoder:
    """The part of the model that a rank holds."""
    return load_decoder(
        settings.model_path,
        dtype=settings.dtype,
        quantization=settings.quantization,
        runtime=runtime,
        max_positions=settings.max_positions,
        shape=settings.shape,
        rank=rank,
    )


def linear_all_reduce_of(settings: RankSettings, decoder: Decoder) -> LinearAllReduce | None:
    """The operator that makes sums of several ranks; None: collectives do.

    Raises:
        ConfigError: The device has none for the model.
    """
    return decoder.linear_all_reduce() if settings.enable_mc2 else None


def prepare_worker(
    settings: RankSettings,
    decoder: Decoder,
    sizes: CacheSizes,
    *,
    observe: Observe | None = None,
) -> Callable[[Communicator], Worker]:
    """Allocate the KV cache of a rank; the worker follows when the world is joined.

    Args:
        settings: Of all ranks.
        decoder: The part of this one.
        sizes: Of every rank's cache.
        observe: Takes what each step was measured to take; None: it goes unmeasured.

    Raises:
        ConfigError: The device lacks an operator that is to make sums, or graphs.
    """
    linear_all_reduce = linear_all_reduce_of(settings, decoder)
    layout = decoder.cache_layout(settings.block_size, decoder.kv_dtype(settings.kv_cache_dtype))
    caches = allocate_caches(decoder, layout, sizes, graph_rows=settings.graph_rows)

    def make(communicator: Communicator) -> Worker:
        return Worker(
            decoder,
            caches.kv,
            communicator,
            host_cache=caches.host,
            observe=observe,
            linear_all_reduce=linear_all_reduce,
            dp=_dp_exchange(decoder, sizes, communicator),
        )

    return make


def _dp_exchange(
    decoder: Decoder, sizes: CacheSizes, communicator: Communicator
) -> DPExchange | None:
    """The exchange of a rank with those of other dp ranks; None: there are none."""
    plan = decoder.plan
    if plan.shape.dp == 1:
        return None
    batches = DPBatches(
        dp=plan.shape.dp,
        dp_rank=plan.dp_rank,
        num_blocks=sizes.num_blocks,
        num_host_blocks=sizes.num_host_blocks,
    )
    return DPExchange(batches, communicator, plan, vocab_size=decoder.config.vocab_size)


def phrase_of(error: BaseException) -> str:
    """An error as a part of a sentence."""
    return f"{type(error).__name__}: {error}".rstrip(".")


def _report(connection: Connection, report: Recorded) -> None:
    # Rank 0 may be gone, and then so is this process.
    with suppress(OSError):
        connection.send(report)
