"""The worker of a rank: its part of each step, alone or in a group (vLLM's word)."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.device.host_streams import HostStream
from tandem_engine.device.runtime import LinearAllReduce
from tandem_engine.device.stream_layouts import open_streams
from tandem_engine.device.streams import Job, StreamLayout
from tandem_engine.microbatch.cut import Cut, RefusalReason, cut
from tandem_engine.microbatch.overlap import StepOverlap
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import StepRows
from tandem_engine.model.decoder import Decoder, KVCache
from tandem_engine.model.kernel_stages import LinearSum
from tandem_engine.model.stages import Collectives, NoPeers, Stages, drive, own_rows
from tandem_engine.parallel.communicator import Communicator
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.caches import Caches, make_copies
from tandem_engine.runner.dp_exchange import DPExchange
from tandem_engine.runner.hand_over import drive_halves, drive_timed, drive_traced
from tandem_engine.runner.micro_batches import MicroBatches, rows_of
from tandem_engine.runner.pending_logits import (
    NO_LOGITS,
    Computed,
    LaterWork,
    PendingLogits,
    Queued,
    results_of,
)
from tandem_engine.runner.recording import Recorder
from tandem_engine.runner.stage_collectives import (
    LOGITS,
    TP,
    CommunicatorCollectives,
    hidden_group,
)
from tandem_engine.runner.step_trace import StepTrace
from tandem_engine.sampling.token_scores import TokenScorer
from tandem_engine.sampling.top_logits import ALL_LOGITS, TopLogits, num_columns

Observe = Callable[[StepRows | None, Cut | RefusalReason, StepOverlap], None]
"""Takes the rows of a step (None: there is nothing to learn), how it was cut or why not, and what
it took."""

_LEARN_EVERY: Final = 8
"""Whole steps of decodes alone of which one is learnt from."""

_UNDER_WAY: Final = 2
"""Steps that a device may not have computed when its host has queued another."""


class Worker:
    """Computes one rank's part of the steps of a replica, in the order in which they come.

    All ranks of a group are given the same steps. Between pipeline stages, what a rank sends goes
    out on a stream of its own, and the first stage receives logits on another one: no rank that
    computes ever waits for one behind it, so that ranks with large tensors for each other cannot
    wait for each other for ever.

    Args:
        decoder: The rank's part of the model.
        kv_cache: Its layers' and heads' blocks on the device.
        communicator: Of the rank, in the world of `stage_collectives.world_shape`; None: it is
            alone, and the decoder is all of the model.
        host_cache: Blocks for swapped-out sequences; None: no step swaps.
        observe: Called with what each step was measured to take; None: it goes unmeasured.
        streams: To compute on, and this worker's from now on; None: those of the decoder's device.
        linear_all_reduce: Multiplies, and adds up among the ranks that share layers; None:
            collectives do.
        dp: Shares rows out among dp ranks; None: there is one.

    Attributes:
        recorder: Records the rank's steps for timelines; for the thread that computes them.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_cache: KVCache,
        communicator: Communicator | None = None,
        *,
        host_cache: Tensor | None = None,
        observe: Observe | None = None,
        streams: StreamLayout | None = None,
        linear_all_reduce: LinearAllReduce | None = None,
        dp: DPExchange | None = None,
    ) -> None:
        self._decoder = decoder
        self._plan = decoder.plan
        self._caches = Caches(kv_cache, host_cache)
        self._communicator = communicator
        self._collectives: Collectives = NoPeers()
        if communicator is not None:
            self._collectives = CommunicatorCollectives(communicator, decoder.plan)
        self._observe = observe
        self._streams = streams or open_streams(decoder.device)
        self._later = LaterWork(self._streams.later)
        # Elsewhere a call returns before its work is done, and only events know when that was.
        self._is_on_host = isinstance(self._streams.current, HostStream)
        self.recorder = Recorder(decoder.plan.rank)
        self._linear_sum: LinearSum | None = None
        if linear_all_reduce is not None:
            self._linear_sum = partial(linear_all_reduce, group=self._peers.handle(TP))
        self._dp = dp
        self._scorer = TokenScorer(decoder.row_sampler())
        # Of the last step that had one.
        self._top: TopLogits | None = None
        self._prices: CutPrices | None = None
        self._num_decoded = 0
        # Tensors are kept until the next rank has read them.
        self._sent: deque[tuple[Job[None], Tensor]] = deque()
        # Of the steps that are to be observed.
        self._traces: deque[tuple[StepRows | None, Cut | RefusalReason, StepTrace]] = deque()

    @property
    def vocab_size(self) -> int:
        """Token ids that the model has an embedding for."""
        return self._decoder.config.vocab_size

    def copy(self, step: Step) -> None:
        """Make those copies of `step` that are the rank's: out to the host, in, on the device.

        Raises:
            ValueError: It swaps and there are no host blocks, which is a bug.
        """
        own = step if self._dp is None else self._dp.copies(step)
        make_copies(own, self._caches)

    def set_prices(self, prices: CutPrices | None) -> None:
        """Cut steps by these prices from now on; None: cut none. All ranks are given the same.

        Each dp rank cuts its own rows.
        """
        self._prices = prices

    def compute(self, batch: FlatBatch) -> PendingLogits:
        """Compute the rank's part of a step, and exchange what goes in and out.

        To be called under torch.inference_mode. It may be called for a further step before the
        logits of this one are there. A dp rank without a row takes part in the step nevertheless.

        Returns:
            On rank 0 the logits of `Executor.begin`; without a meaning on others.

        Raises:
            CollectiveError: Another rank is dead, silent, or computes something else.
        """
        if self._dp is None:
            return self._compute(batch)
        part = self._dp.part(batch)
        # A model whose ranks exchange nothing across dp has nothing to do without rows.
        own: PendingLogits = NO_LOGITS
        if part.is_empty:
            self.recorder.skip()
        else:
            own = self._compute(part.batch)
        exchange = self._dp.exchange(batch, part, own)
        return NO_LOGITS if exchange is None else self._follow(exchange)

    def close(self) -> None:
        """End its threads; what they send and receive must come to an end by itself."""
        self._later.close()
        self._streams.close()

    @property
    def _peers(self) -> Communicator:
        assert self._communicator is not None, "a rank that is alone has no peers; this is a bug"  # noqa: S101
        return self._communicator

    def _compute(self, batch: FlatBatch) -> PendingLogits:
        """Compute the stages of a batch; the first rank of each dp rank has the logits."""
        if batch.scoring is not None:
            batch.scoring.scorer = self._scorer
        if self._communicator is None:
            return Computed(self._alone(batch))
        if self._observe is not None or self._prices is not None or self.recorder.is_on:
            result = self._cut_or_whole(batch)
        else:
            result = drive(self._stages(batch, self._hidden(batch)), self._collectives)
        if self._plan.shape.pp == 1:
            return NO_LOGITS if result is None else self._follow(lambda: result)
        return self._passed_on(result, batch)

    def _alone(self, batch: FlatBatch) -> Tensor:
        """Compute all of the model at once, which has no stages then."""
        forward = partial(
            self._decoder.forward,
            batch.token_ids,
            self._caches.kv,
            batch.attention,
            logits_rows=batch.logits_at,
            scoring=batch.scoring,
        )
        if not self.recorder.is_on:
            return forward()
        trace = StepTrace()
        job = self._streams.current.run(forward)
        trace.add(job, self._streams.current)
        trace.wait()
        self.recorder.add(batch, None, trace)
        return job.result()

    def _follow(self, work: Callable[[], Tensor]) -> PendingLogits:
        """Do `work` behind all steps so far; where logits come later, behind these on their stream.

        It is the last to use the logits of these steps.
        """
        if self._plan.shape.pp > 1:
            return self._do_later(work)
        return Queued(self._streams.current.run(work))

    def _cut_or_whole(self, batch: FlatBatch) -> Tensor | None:
        """Compute a step in two halves where that is predicted to pay, and measure it."""
        rows, outcome = self._decided(batch)
        if isinstance(outcome, Cut) or self.recorder.is_on or not self._is_on_host:
            trace = StepTrace()
            result = self._traced(batch, outcome, trace)
            if self.recorder.is_on:
                trace.wait()
                self.recorder.add(batch, outcome, trace)
            self._observe_later(rows, outcome, trace)
            return result
        stages = self._stages(batch, self._hidden(batch))
        result, measured = drive_timed(stages, self._collectives)
        if self._observe is not None:
            self._observe(rows, outcome, measured)
        return result

    def _observe_later(
        self, rows: StepRows | None, outcome: Cut | RefusalReason, trace: StepTrace
    ) -> None:
        """Observe a step when it is done; a device has done neither it nor the one before it."""
        if self._observe is None:
            return
        self._traces.append((rows, outcome, trace))
        while len(self._traces) > (0 if self._is_on_host else _UNDER_WAY):
            past_rows, past_outcome, past = self._traces.popleft()
            past.wait()
            self._observe(past_rows, past_outcome, past.overlap())

    def _traced(
        self, batch: FlatBatch, outcome: Cut | RefusalReason, trace: StepTrace
    ) -> Tensor | None:
        if isinstance(outcome, Cut):
            return self._halves(batch, outcome, trace)
        stages = self._stages(batch, self._hidden(batch))
        return drive_traced(stages, self._collectives, self._streams.current, trace)

    def _decided(self, batch: FlatBatch) -> tuple[StepRows | None, Cut | RefusalReason]:
        """How the step is cut, or why not; with its rows where there is something to learn."""
        prices = self._prices
        if _only_decodes(batch) and (prices is None or not prices.decodes):
            # It is short, and so is what may be spent on it.
            self._num_decoded += 1
            is_learnt_from = not self._num_decoded % _LEARN_EVERY
            reason = RefusalReason.OFF if prices is None else RefusalReason.DECODE_ONLY
            return rows_of(batch) if is_learnt_from else None, reason
        if batch.scoring is not None:
            return None, RefusalReason.PROMPT_LOGPROBS
        rows = rows_of(batch)
        # Under sp a later stage is handed rows of its own, and not those of a half.
        is_solid = self._plan.shape.pp > 1 and self._is_sequence_parallel(batch)
        return rows, cut(rows, None if is_solid else prices)

    def _halves(self, batch: FlatBatch, outcome: Cut, trace: StepTrace) -> Tensor | None:
        halves = MicroBatches.of(batch, outcome)
        self._decoder.reserve(len(batch.token_ids))
        hidden = self._hidden(batch)
        early = None if hidden is None else hidden[halves.first_tokens]
        late = None if hidden is None else hidden[halves.second_tokens]
        first, second = drive_halves(
            self._stages(halves.first, early, like=batch),
            self._stages(halves.second, late, like=batch),
            self._collectives,
            self._streams,
            trace,
        )
        if first is None or second is None:
            return None
        if self._plan.is_last_stage:
            return halves.merge(first, second)
        return halves.merge_hidden(first, second)

    def _stages(
        self, batch: FlatBatch, hidden: Tensor | None, *, like: FlatBatch | None = None
    ) -> Stages:
        """The stages of a batch; a half is sequence parallel where the whole is."""
        return self._decoder.stages(
            batch.token_ids,
            self._caches.kv,
            batch.attention,
            logits_rows=batch.logits_at,
            hidden=hidden,
            scoring=batch.scoring,
            reducer=self._reducer(batch.num_top),
            sequence_parallel=self._is_sequence_parallel(batch if like is None else like),
            # The operator's page has it for prefill alone.
            linear_sum=None if _only_decodes(batch) else self._linear_sum,
        )

    def _reducer(self, num_top: int) -> TopLogits | None:
        """Reducer of the rank's share to its top logits; None: all are handed over."""
        if num_top == ALL_LOGITS:
            return None
        if self._top is None or self._top.num_top != num_top:
            self._top = TopLogits(num_top, self._decoder.row_sampler())
        return self._top

    def _is_sequence_parallel(self, batch: FlatBatch) -> bool:
        # A step with a decode has too few rows for sp to be of use.
        return self._plan.shape.sp and not batch.attention.num_decode_rows

    def _hidden(self, batch: FlatBatch) -> Tensor | None:
        """Hidden states of the stage before; None: there is none."""
        plan, packed_model = self._plan, self._decoder.packed_model
        if plan.is_first_stage:
            return None
        num_tokens = num_rows = len(batch.token_ids)
        if self._is_sequence_parallel(batch):
            own = own_rows(num_tokens, plan)
            num_rows = own.stop - own.start
        # The table of angles is of the type that is computed in.
        hidden = packed_model.rope.new_empty(num_rows, packed_model.hidden_size)
        self._peers.receive(hidden, 0, hidden_group(plan.pp_rank - 1))
        return hidden

    def _passed_on(self, result: Tensor | None, batch: FlatBatch) -> PendingLogits:
        """Send hidden states to the next stage, or logits to the first; await them there."""
        plan = self._plan
        if not plan.is_last_stage:
            assert result is not None, "inner stages give hidden states; this is a bug"  # noqa: S101
            self._send(result, 1, hidden_group(plan.pp_rank))
        elif result is not None:
            for tensor in results_of(batch, result):
                self._send(tensor, 0, LOGITS)
        if plan.pp_rank or plan.tp_rank:
            return NO_LOGITS
        logits = self._empty(batch)
        awaited = results_of(batch, logits)
        if not awaited:
            return Computed(logits)
        return self._do_later(partial(self._receive, logits, awaited))

    def _do_later(self, work: Callable[[], Tensor]) -> PendingLogits:
        """Do `work` when it is its turn on its stream, and all that is queued here now is done.

        Memory that it writes was made here, and a step in front of it may still be using that.
        """
        return self._later.do(work, after=self._streams.current.run(_nothing))

    def _send(self, tensor: Tensor, place: int, group: str) -> None:
        """Send without waiting; but a few tensors at most are on their way."""
        while len(self._sent) >= self._plan.shape.pp:
            job, _ = self._sent.popleft()
            job.wait()
        sending: Callable[[], None] = partial(self._peers.send, tensor, place, group)
        computed: Job[Any] = self._streams.current.run(_nothing)
        self._sent.append((self._streams.send.run(sending, after=[computed]), tensor))

    def _receive(self, logits: Tensor, awaited: Sequence[Tensor]) -> Tensor:
        for tensor in awaited:
            self._peers.receive(tensor, 1, LOGITS)
        return logits

    def _empty(self, batch: FlatBatch) -> Tensor:
        """Room for the logits of a step."""
        decoder = self._decoder
        width = num_columns(
            batch.num_top, num_shares=self._plan.num_tp, vocab_size=decoder.config.vocab_size
        )
        return torch.empty(len(batch.yield_at), width, device=decoder.device)


def _only_decodes(batch: FlatBatch) -> bool:
    return batch.attention.num_decode_rows == batch.attention.num_rows


def _nothing() -> None:
    """Work that only has a place in a stream."""
