"""A draft model that is in memory: what it takes of it, and the drafts that it makes."""

from dataclasses import dataclass, replace
from typing import Final

from tandem_engine.api.config import EngineConfig
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.kvcache.capacity import StepCost
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.model.decoder import Decoder
from tandem_engine.model.draft import DRAFT_QUANTIZATION, DraftPart
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.runner.draft_model import DraftModel
from tandem_engine.runner.profile import profile_steps

_NOTHING: Final = StepCost(fixed=0, per_token=0, per_row=0)


@dataclass(slots=True, kw_only=True)
class LoadedDraft:
    """The draft model of a replica; rank 0 has all of it."""

    part: DraftPart
    decoder: Decoder
    cost: StepCost = _NOTHING
    """Of its steps, once they are measured."""

    @classmethod
    def load(
        cls, part: DraftPart, config: EngineConfig, runtime: DeviceRuntime, max_positions: int
    ) -> "LoadedDraft":
        """Read its checkpoint.

        Args:
            part: The result of `check_draft`.
            config: Of the replica.
            runtime: The device of rank 0.
            max_positions: Tokens that a sequence of the model may have.

        Raises:
            CheckpointError: A file is missing, damaged or of a kind that is not understood.
        """
        decoder = load_decoder(
            part.path,
            dtype=config.dtype,
            quantization=DRAFT_QUANTIZATION,
            runtime=runtime,
            max_positions=min(max_positions, part.config.max_position_embeddings),
        )
        return cls(part=part, decoder=decoder)

    def beside(self, layout: CacheLayout, num_dp: int) -> CacheLayout:
        """Return the model's layout with the draft model's blocks counted in: those of all dp."""
        own = self.decoder.cache_layout(layout.block_size)
        return replace(layout, beside=num_dp * own.bytes_per_token)

    def measure(self, runtime: DeviceRuntime, block_size: int) -> None:
        """Measure what its steps cost.

        Raises:
            ConfigError: The draft model does not run.
        """
        self.cost = profile_steps(
            self.decoder, runtime, block_size=block_size, kv_dtype=self.decoder.dtype
        )

    def drafter(self, runtime: DeviceRuntime, *, num_blocks: int, block_size: int) -> DraftModel:
        """Return the draft model with a KV cache."""
        return DraftModel(
            self.decoder, runtime=runtime, num_blocks=num_blocks, block_size=block_size
        )
