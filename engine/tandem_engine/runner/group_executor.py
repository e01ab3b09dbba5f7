"""The executor of a group of ranks, as the runner of rank 0 sees it."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from typing import Final

from torch import Tensor

from tandem_engine.api.errors import ReplicaLost
from tandem_engine.api.micro_batch_stats import MicroBatchStats
from tandem_engine.api.step import Step
from tandem_engine.api.timeline import RankStep, Timeline
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.parallel.errors import CollectiveError
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.micro_batch_control import MicroBatchControl
from tandem_engine.runner.peer_process import PeerLost
from tandem_engine.runner.pending_logits import PendingLogits
from tandem_engine.runner.rank_batches import columns_of, prices_message, recording_message
from tandem_engine.runner.rank_messages import StepEncoder
from tandem_engine.runner.step_channel import StepChannelClosed
from tandem_engine.runner.worker import Worker

SLOWER: Final = 10
"""Times the prediction: so much slower than predicted a step may be."""


class RankLost(ReplicaLost):
    """A rank cannot go on, and with it the group; the text names rank and cause."""


class GroupExecutor:
    """Implements `runner.executor.Executor` on all ranks of a group; see `rank_group.RankGroup`.

    The first step that fails on any rank is the last one of the group: the others cannot know how
    far it has come. From then on every call raises the same error.

    Args:
        local: The worker of rank 0.
        publish: Hands a message to the other ranks.
        num_stages: Pipeline stages.
        abort: Makes the other ranks give up a step, with the cause.
        check: Raises where the logits of a step cannot be relied on, though they are there.
        expect: Takes the time that ranks may compute on top of the longest silence; 0: it is not
            known.
        exits: Describes ranks that have been ended; for the error.
        broadcast: Hands tokens of this rank's device to those of the others, behind all that is
            queued there; None: a step is done when its call returns, and the host knows its tokens.
        micro_batches: Says by which prices steps are cut; None: no step is.
        recorded: Waits for the steps that the other ranks have recorded.
    """

    def __init__(
        self,
        local: Worker,
        *,
        publish: Callable[[bytes], None],
        num_stages: int = 1,
        abort: Callable[[str], None],
        check: Callable[[], None],
        expect: Callable[[float], None],
        exits: Callable[[], str],
        broadcast: Callable[[Tensor], None] | None = None,
        micro_batches: MicroBatchControl | None = None,
        recorded: Callable[[], Sequence[RankStep]] = tuple,
    ) -> None:
        self._local = local
        self._publish = publish
        self._num_stages = num_stages
        self._abort = abort
        self._check = check
        self._expect = expect
        self._broadcast = broadcast
        # Of the steps that are under way: where calls return early, the one before is.
        self._expected_s: deque[float] = deque(maxlen=num_stages + (broadcast is not None))
        self._exits = exits
        self._micro_batches = micro_batches
        self._prices: CutPrices | None = None
        self._recorded = recorded
        # Held by the begin of a step, so that a recording begins and ends between two.
        self._beginning = threading.Lock()
        self._encoder = StepEncoder()
        self._lost: RankLost | None = None

    @property
    def num_stages(self) -> int:
        """Pipeline stages: so many steps are computed at the same time."""
        return self._num_stages

    @property
    def vocab_size(self) -> int:
        """Token ids that the model has an embedding for."""
        return self._local.vocab_size

    @property
    def heeds_num_top(self) -> bool:
        """True: other ranks keep most of their shares."""
        return True

    def remove(self, sequence_ids: Sequence[str]) -> None:
        """Give the sequences' table ids to others."""
        self._encoder.remove(sequence_ids)

    def copy(self, step: Step) -> None:
        """Make the copies of `step` on all ranks.

        Raises:
            RankLost: A rank cannot go on.
        """
        with self._beginning, self._together():
            message = self._encoder.copies(step)
            if message is not None:
                self._publish(message)
                self._local.copy(step)

    def begin(self, batch: FlatBatch) -> PendingLogits:
        """Compute the first stage of a step, and let the other ranks go on with it.

        Raises:
            RankLost: A rank cannot go on.
        """
        with self._beginning, self._together():
            self._expect_end_of(batch)
            self._hand_out_prices()
            self._hand_out(batch)
            return _OfGroup(self._local.compute(batch), self._together, self._check)

    def reading(self) -> AbstractContextManager[None]:
        """See `Executor`: where calls return early, a step fails when its results are read."""
        return nullcontext() if self._broadcast is None else self._checked()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        finally:
            # Where the group has failed, that is why reading has, too.
            with self._together():
                self._check()

    def begin_recording(self, num_steps: int, is_full: Callable[[], None]) -> None:
        """See `RecordingExecutor`."""
        with self._beginning:
            self._order_recording(num_steps)
            self._local.recorder.begin(num_steps, is_full)

    def end_recording(self) -> Timeline:
        """See `RecordingExecutor`."""
        with self._beginning:
            own = self._local.recorder.end()
            self._order_recording(0)
        steps = [*own, *self._recorded()]
        return Timeline(steps=tuple(sorted(steps, key=lambda step: (step.number, step.rank))))

    def _order_recording(self, num_steps: int) -> None:
        """Tell the other ranks; what is wrong with them ends the group at its next step.

        Raises:
            RankLost: They compute nothing any more.
        """
        if self._lost is not None:
            raise self._lost
        try:
            self._publish(recording_message(num_steps))
        except (CollectiveError, PeerLost, StepChannelClosed) as error:
            raise RankLost(str(error)) from error

    def micro_batch_stats(self) -> MicroBatchStats | None:
        """Gains and costs of micro-batches; None: they are off. From any thread."""
        return None if self._micro_batches is None else self._micro_batches.stats()

    def _hand_out(self, batch: FlatBatch) -> None:
        hands_tokens = self._broadcast is not None
        self._publish(self._encoder.batch(columns_of(batch, hands_tokens=hands_tokens)))
        if self._broadcast is not None and batch.sampled is not None:
            self._broadcast(batch.sampled)

    def _expect_end_of(self, batch: FlatBatch) -> None:
        """Let ranks compute for as long as the longest step under way may take."""
        self._expected_s.append(inf if batch.expected_s is None else batch.expected_s)
        longest_s = max(self._expected_s)
        self._expect(0.0 if longest_s == inf else SLOWER * longest_s)

    def _hand_out_prices(self) -> None:
        """Have all ranks cut the next step by the prices of this moment."""
        if self._micro_batches is not None:
            self.set_prices(self._micro_batches.prices())

    def set_prices(self, prices: CutPrices | None) -> None:
        """Have all ranks cut steps by these prices from now on; None: cut none."""
        if prices is not self._prices:
            self._publish(prices_message(prices))
            self._local.set_prices(prices)
            self._prices = prices

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Let all ranks give up where one of them fails."""
        if self._lost is not None:
            raise self._lost
        try:
            yield
        except Exception as error:
            is_known = isinstance(error, CollectiveError | PeerLost)
            cause = (
                str(error) if is_known else f"Rank 0 cannot go on: {type(error).__name__}: {error}."
            )
            self._abort(cause)
            self._lost = RankLost(f"{cause} {self._exits()}".rstrip())
            raise self._lost from error


class _OfGroup:
    """Logits of a group; what they fail of is the end of it. Implements `PendingLogits`."""

    def __init__(
        self,
        logits: PendingLogits,
        together: Callable[[], AbstractContextManager[None]],
        check: Callable[[], None],
    ) -> None:
        self._logits = logits
        self._together = together
        self._check = check

    def then(self, go_on: Callable[[], None]) -> None:
        """See `PendingLogits`."""
        self._logits.then(go_on)

    def result(self) -> Tensor:
        """See `PendingLogits`; raise RankLost if a rank cannot go on."""
        with self._together():
            logits = self._logits.result()
            self._check()
            return logits
