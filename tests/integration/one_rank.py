"""An engine on one rank, as a replica builds it, for a model that is loaded already."""

from tandem_engine.api.config import EngineConfig
from tandem_engine.build import _engine, _executor
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.engine import Engine
from tandem_engine.kvcache.capacity import Capacity
from tandem_engine.model.decoder import Decoder
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.loaded_draft import LoadedDraft


def engine_of_one_rank(
    config: EngineConfig,
    decoder: Decoder,
    capacity: Capacity,
    runtime: DeviceRuntime,
    *,
    num_host_blocks: int = 0,
    draft: LoadedDraft | None = None,
) -> Engine:
    """Return the engine, perhaps with a draft model."""
    sizes = CacheSizes(num_blocks=capacity.num_blocks, num_host_blocks=num_host_blocks)
    executor = _executor(config, decoder, sizes)
    return _engine(
        config,
        executor,
        capacity,
        runtime,
        num_host_blocks=num_host_blocks,
        draft=draft,
        on_close=None,
    )
