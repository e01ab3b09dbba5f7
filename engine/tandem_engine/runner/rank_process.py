"""A rank other than 0: a process that loads its part of a model and computes what rank 0 says.

It talks to rank 0 on a pipe while it starts, then gets steps on a channel in shared memory. It ends
when rank 0 closes the channel, and when it cannot go on; what started it, see `rank_launcher`, ends
it when rank 0's process ends however.
"""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, Literal

import torch

from tandem_engine.api.config import DType, Quantization
from tandem_engine.api.step import Step
from tandem_engine.device.registry import open_device
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.model.decoder import Decoder, allocate_host_cache, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.parallel.segment import SegmentAddress, SharedSegment
from tandem_engine.parallel.shared_memory import SharedMemoryCommunicator
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.dp_batches import DPBatches
from tandem_engine.runner.dp_executor import DPExecutor
from tandem_engine.runner.executor import RankExecutor
from tandem_engine.runner.rank_batches import RankBatches
from tandem_engine.runner.stage_collectives import world_shape
from tandem_engine.runner.stage_executor import StageExecutor
from tandem_engine.runner.step_channel import StepChannelClosed, StepReader

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
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    device: str = "cpu"
    memory_bytes: int | None = None
    """Memory that each rank may use; None: the device finds out."""
    num_threads: int | None = 1
    """Threads of each rank other than 0; None: one a core."""
    timeout_s: float = 30.0
    """The longest silence of a rank that others wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """Blocks of the KV cache; every rank has as many, each of its own layers and heads.

    The schedule counts those of all dp ranks: see `kvcache.dp_pools`.
    """

    num_blocks: int
    num_host_blocks: int = 0
    """For sequences that are swapped out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAddress:
    """Where a rank finds rank 0."""

    process: int
    channel: SegmentAddress
    """Of the step channel."""
    world: SegmentAddress
    """Of the communicator."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Report to rank 0: the rank has its weights."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Report to rank 0: the rank has its KV cache, and joins the world."""


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
        _LOG.info("%s", runtime.set_num_threads(settings.num_threads))
        decoder = load_part(settings, runtime, rank)
        connection.send(Loaded())
        sizes: CacheSizes = connection.recv()
        make = prepare_executor(settings, decoder, sizes)
        connection.send(Ready())
    except EOFError:
        return  # rank 0 has given the start up
    except Exception as error:
        connection.send(StartFailed(phrase_of(error)))
        raise
    with closing(join_world(settings, address.world, rank)) as communicator:
        channel = SharedSegment.attach(address.channel)
        reader = StepReader(channel.buffer, place=rank - 1, timeout_s=settings.timeout_s)
        batches = RankBatches(block_size=settings.block_size, device=runtime.device)
        runtime.begin_steps()
        executor = make(communicator)
        try:
            _serve(reader, batches, executor, runtime)
        except StepChannelClosed:
            return
        except Exception as error:
            communicator.abort(f"Rank {rank} cannot go on: {phrase_of(error)}; see its log.")
            raise
        finally:
            executor.close()


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


def prepare_executor(
    settings: RankSettings, decoder: Decoder, sizes: CacheSizes
) -> Callable[[Communicator], RankExecutor]:
    """Allocate the KV cache of a rank; the executor follows when the world is joined."""
    kv_dtype = torch.int8 if settings.kv_cache_dtype == "int8" else decoder.dtype
    kv_cache = allocate_kv_cache(
        decoder.cache_layout(settings.block_size, kv_dtype),
        num_blocks=sizes.num_blocks,
        device=decoder.device,
    )
    host_cache = None
    if sizes.num_host_blocks:
        host_cache = allocate_host_cache(kv_cache, num_blocks=sizes.num_host_blocks)
    dp, plan = settings.shape.dp, decoder.plan
    batches = DPBatches(
        dp=dp,
        dp_rank=plan.dp_rank,
        num_blocks=sizes.num_blocks,
        num_host_blocks=sizes.num_host_blocks,
    )

    def make(communicator: Communicator) -> RankExecutor:
        stages = StageExecutor(decoder, kv_cache, communicator, host_cache=host_cache)
        if dp == 1:
            return stages
        vocab_size = decoder.config.vocab_size
        return DPExecutor(stages, batches, communicator, plan, vocab_size=vocab_size)

    return make


def join_world(
    settings: RankSettings, address: SegmentAddress, rank: int
) -> SharedMemoryCommunicator:
    """Wait for all ranks of the group, and join them."""
    return SharedMemoryCommunicator(
        address, world_shape(settings.shape), rank, timeout_s=settings.timeout_s
    )


def phrase_of(error: BaseException) -> str:
    """An error as a part of a sentence."""
    return f"{type(error).__name__}: {error}".rstrip(".")


def _serve(
    reader: StepReader,
    batches: RankBatches,
    executor: RankExecutor,
    runtime: DeviceRuntime,
) -> None:
    """Compute one step after another; raise StepChannelClosed when there are no more."""
    with torch.inference_mode():
        while True:
            message = reader.receive()
            with runtime.step():
                _compute(batches.decode(message), executor)


def _compute(work: Step | FlatBatch, executor: RankExecutor) -> None:
    if isinstance(work, Step):
        executor.copy(work)
    else:
        executor.compute(work)
