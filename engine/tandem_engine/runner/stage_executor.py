"""One rank's part of each step, where several ranks compute one model."""

from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.model.decoder import Decoder, KVCache
from tandem_engine.model.stages import drive
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.executor import make_copies
from tandem_engine.runner.stage_collectives import CommunicatorCollectives


class StageExecutor:
    """Computes the stages of one rank; all ranks are given the same steps in the same order.

    Args:
        decoder: The rank's part of the model.
        kv_cache: Its layers' and heads' blocks on the device.
        communicator: Of the rank, in the world of `stage_collectives.world_shape`.
        host_cache: Blocks for swapped-out sequences; None: no step swaps.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_cache: KVCache,
        communicator: Communicator,
        *,
        host_cache: Tensor | None = None,
    ) -> None:
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._host_cache = host_cache
        self._collectives = CommunicatorCollectives(communicator, decoder.plan)

    def copy(self, step: Step) -> None:
        """Make the copies of `step` in the rank's own blocks."""
        make_copies(step, self._kv_cache, self._host_cache)

    def compute(self, batch: FlatBatch) -> Tensor | None:
        """Compute the rank's stages of a step, and the collectives between them.

        To be called under torch.inference_mode.

        Returns:
            On rank 0 the logits, float32 [yielding positions, vocabulary]; None on others.

        Raises:
            CollectiveError: Another rank is dead, silent, or computes something else.
        """
        stages = self._decoder.stages(
            batch.token_ids, self._kv_cache, batch.attention, logits_rows=batch.yield_at
        )
        return drive(stages, self._collectives)
