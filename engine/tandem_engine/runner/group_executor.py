"""The executor of a group of ranks, as the runner of rank 0 sees it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor

from tandem_engine.api.errors import ReplicaLost
from tandem_engine.api.step import Step
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.executor import PendingLogits, RankExecutor
from tandem_engine.runner.peer_process import PeerLost
from tandem_engine.runner.rank_batches import columns_of
from tandem_engine.runner.rank_messages import StepEncoder


class RankLost(ReplicaLost):
    """A rank cannot go on, and with it the group; the text names rank and cause."""


class GroupExecutor:
    """Implements `runner.executor.Executor` on all ranks of a group; see `rank_group.RankGroup`.

    The first step that fails on any rank is the last one of the group: the others cannot know how
    far it has come. From then on every call raises the same error.

    Args:
        local: The part of rank 0.
        publish: Hands a message to the other ranks.
        vocab_size: Of the whole model.
        num_stages: Pipeline stages.
        abort: Makes the other ranks give up a step, with the cause.
        exits: Describes ranks that have been ended; for the error.
    """

    def __init__(
        self,
        local: RankExecutor,
        *,
        publish: Callable[[bytes], None],
        vocab_size: int,
        num_stages: int = 1,
        abort: Callable[[str], None],
        exits: Callable[[], str],
    ) -> None:
        self._local = local
        self._publish = publish
        self._vocab_size = vocab_size
        self._num_stages = num_stages
        self._abort = abort
        self._exits = exits
        self._encoder = StepEncoder()
        self._lost: RankLost | None = None

    @property
    def num_stages(self) -> int:
        """Pipeline stages: so many steps are computed at the same time."""
        return self._num_stages

    @property
    def vocab_size(self) -> int:
        """Token ids that the model has an embedding for."""
        return self._vocab_size

    def remove(self, sequence_ids: Sequence[str]) -> None:
        """Give the sequences' table ids to others."""
        self._encoder.remove(sequence_ids)

    def copy(self, step: Step) -> None:
        """Make the copies of `step` on all ranks.

        Raises:
            RankLost: A rank cannot go on.
        """
        with self._together():
            message = self._encoder.copies(step)
            if message is not None:
                self._publish(message)
                self._local.copy(step)

    def begin(self, batch: FlatBatch) -> PendingLogits:
        """Compute the first stage of a step, and let the other ranks go on with it.

        Raises:
            RankLost: A rank cannot go on.
        """
        with self._together():
            self._publish(self._encoder.batch(columns_of(batch)))
            return _OfGroup(self._local.compute(batch), self._together)

    def forward(self, batch: FlatBatch) -> Tensor:
        """Logits of the yielding positions: float32 [yielding positions, vocabulary].

        Raises:
            RankLost: A rank cannot go on.
        """
        return self.begin(batch).result()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Let all ranks give up where one of them fails."""
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except Exception as error:
            told = isinstance(error, CollectiveError | PeerLost)
            cause = str(error) if told else f"Rank 0 cannot go on: {type(error).__name__}: {error}."
            self._abort(cause)
            self._lost = RankLost(f"{cause} {self._exits()}".rstrip())
            raise self._lost from error


class _OfGroup:
    """Logits of a group; what they fail of is the end of it. Implements `PendingLogits`."""

    def __init__(
        self, logits: PendingLogits, together: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._logits = logits
        self._together = together

    def then(self, go_on: Callable[[], None]) -> None:
        """See `PendingLogits`."""
        self._logits.then(go_on)

    def result(self) -> Tensor:
        """Wait for them; raise RankLost if a rank cannot go on."""
        with self._together():
            return self._logits.result()
