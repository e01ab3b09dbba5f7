"""The runner: keeps each sequence's tokens and turns a step into new ones."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor

from tandem_engine.api.drafts import DraftLimits, Proposals
from tandem_engine.api.request import Request
from tandem_engine.api.step import Candidate, SampledToken, Step, StepResult
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.runner.batch import NO_AWAITED, FlatBatch, flatten, with_last_tokens
from tandem_engine.runner.compute import ComputeThread
from tandem_engine.runner.decode_batches import DecodeBatches
from tandem_engine.runner.drafts import Drafter, ModelDrafter, Proposer, accepted
from tandem_engine.runner.executor import Executor
from tandem_engine.runner.logits_rows import LogitsRows, split
from tandem_engine.runner.pending_logits import Computed, PendingLogits
from tandem_engine.runner.prompt_scoring import note_scored
from tandem_engine.runner.rows import Rows
from tandem_engine.runner.step_handle import NOT_FINITE, ModelStepHandle
from tandem_engine.sampling.candidates import candidates_of
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.sampler import Sampler
from tandem_engine.sampling.top_logits import num_top_logits


class ModelRunner:
    """Implements `tandem_engine.api.step.Runner` on one executor.

    Args:
        executor: Computes the steps.
        runtime: The device of the batches and of sampling.
        block_size: Tokens of a KV block.
        drafter: Looks drafts up; None: none are.
        draft_model: Computes drafts; None: there is no such model.
        on_close: Called by `close` when nothing is computed any more: ends the ranks of a group.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        runtime: DeviceRuntime,
        block_size: int,
        drafter: Drafter | None = None,
        draft_model: ModelDrafter | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._executor = executor
        self._runtime = runtime
        self._block_size = block_size
        self._proposer = Proposer(executor.vocab_size, drafter=drafter, draft_model=draft_model)
        self._on_close = on_close
        self._sampler = Sampler(runtime.kernels.row_sampler())
        self._rows = Rows()
        self._decode_batches = DecodeBatches()
        self._thread = ComputeThread()
        # The last step that had rows.
        self._last: ModelStepHandle | None = None
        # Sequences that steps handed in so far may have, and none from now on.
        self._removed: list[str] = []
        # With several stages, steps that were submitted and may not be done.
        self._in_flight: deque[ModelStepHandle] = deque()

    def add(self, request: Request) -> None:
        """Add a request, with its prompt and sampling, before its first step."""
        self._rows.add(request)

    def remove(self, sequence_id: str) -> None:
        """Forget a sequence; unknown ids are ignored. One that does not exist yet never will."""
        row = self._rows.by_id.get(sequence_id)
        if row is not None:
            self._proposer.forget(row)
        self._rows.remove(sequence_id)
        self._decode_batches.forget()
        self._removed.append(sequence_id)

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Compute `step`: move beams → copy blocks → flatten → forward → sample."""
        if self._thread.is_running:
            # Another thread would start a set of torch threads of its own.
            return self.submit(step).result()
        handle = self._prepare_handle(step)
        handle.compute(self._compute)
        return handle.result()

    @torch.inference_mode()
    def submit(self, step: Step) -> ModelStepHandle:
        """Begin to compute `step` on a thread of its own, after all that was submitted before.

        Rows of the step may wait for tokens of the previous one: they are put into the batch as
        they come out, without a detour over Python. It must be a step whose rows yield one token
        each, without drafts, beams and choices to create.

        With several pipeline stages, a step begins while others are in later stages; none of its
        rows may wait for tokens of those.
        """
        handle = self._prepare_handle(step)
        if self._executor.num_stages == 1:
            self._thread.put(lambda: handle.compute(self._compute))
            return handle
        while self._in_flight and self._in_flight[0].is_done:
            self._in_flight.popleft()
        self._in_flight.append(handle)
        self._thread.put(lambda: self._begin(handle))
        return handle

    def close(self) -> None:
        """End the thread that computes, when all is computed, and what was to be ended with it."""
        for handle in self._in_flight:
            handle.wait()
        self._in_flight.clear()
        self._thread.close()
        if self._on_close is not None:
            self._on_close()

    def _prepare_handle(self, step: Step) -> ModelStepHandle:
        """Lay a step out; one that cannot be laid out has its copies made, and fails."""
        handle = self._laid_out(step)
        handle.removed, self._removed = self._removed, []
        return handle

    def _laid_out(self, step: Step) -> ModelStepHandle:
        try:
            batch = self._batch_of(step)
        except Exception as error:  # noqa: BLE001 - the step fails with it, and no other
            self._decode_batches.forget()
            return self._handle(step, None, None, error)
        before = self._last if batch is not None and batch.fed is not None else None
        handle = self._handle(step, batch, before)
        if batch is not None:
            self._last = handle
        return handle

    def _handle(
        self,
        step: Step,
        batch: FlatBatch | None,
        before: ModelStepHandle | None,
        error: Exception | None = None,
    ) -> ModelStepHandle:
        return ModelStepHandle(
            step, batch, before, self.sample_any, error, reading=self._executor.reading
        )

    def _batch_of(self, step: Step) -> FlatBatch | None:
        if step.beam_moves:
            self._rows.move(step.beam_moves)
            self._decode_batches.forget()
        return self.prepare(step) if step.sequence_ids else None

    def _compute(self, handle: ModelStepHandle) -> None:
        """Do the device's part of a step."""
        with self._runtime.step():
            self._compute_step(handle)

    def _begin(self, handle: ModelStepHandle) -> None:
        """Compute the first stage of a step; the rest when its logits come out of the last one."""
        handle.begin(self._compute_first_stage)
        if handle.pending is not None:
            # Sampled by the thread that computes, as kernels have one caller at a time.
            handle.pending.then(lambda: self._thread.put(lambda: handle.compute(self._sample)))

    def _compute_first_stage(self, handle: ModelStepHandle) -> None:
        with self._runtime.step():
            handle.pending = self._begin_step(handle)

    def _sample(self, handle: ModelStepHandle) -> None:
        if handle.pending is not None:
            with self._runtime.step():
                self._end_step(handle, handle.pending)

    def _compute_step(self, handle: ModelStepHandle) -> None:
        pending = self._begin_step(handle)
        if pending is not None:
            self._end_step(handle, pending)

    def _begin_step(self, handle: ModelStepHandle) -> PendingLogits | None:
        if handle.removed:
            self._executor.remove(handle.removed)
        self._executor.copy(handle.step)
        handle.has_copied = True
        batch, before = handle.batch, handle.before
        if batch is None:
            return None
        if batch.fed is not None and before is not None:
            batch.feed_in(before.tokens_to_feed())
        if self._executor.num_stages == 1:
            return Computed(self.forward(batch))
        return self._executor.begin(batch)

    def _end_step(self, handle: ModelStepHandle, pending: PendingLogits) -> None:
        batch, before = handle.batch, handle.before
        logits = pending.result()
        if batch is None:
            return
        if not batch.is_simple:
            handle.set_logits(logits)
        elif batch.yielding:
            if before is not None:
                before.commit()
            self.sample(logits, handle)
        else:
            handle.set_end(logits)

    def sample(self, logits: Tensor, handle: ModelStepHandle) -> None:
        """Sample one token a row, as in most steps: no drafts, beams and choices to create."""
        batch = handle.batch
        if batch is not None:
            handle.set_tokens(
                self._sampler.sample_step(logits, batch.yielding, num_top=batch.num_top)
            )

    def prepare(self, step: Step) -> FlatBatch:
        """The batch of a step that has rows."""
        batch = self._decode_batches.advance(step)
        if batch is not None and self._executor.num_stages > 1:
            batch = with_last_tokens(batch)
        if batch is None:
            batch = flatten(
                step,
                self._rows.by_id,
                block_size=self._block_size,
                device=self._runtime.device,
                awaited=self._awaited(),
            )
            if batch.scoring is not None:
                note_scored(batch.scoring.parts, self._rows.by_id)
            if self._executor.heeds_num_top:
                batch.num_top = num_top_logits(batch.yielding)
        batch.expected_s = step.expected_s
        self._decode_batches.remember(step, batch)
        return batch

    def _awaited(self) -> Mapping[Row, int]:
        """The rows that wait for a token of the step that is still computed → its index there."""
        last = self._last
        if last is None or last.is_collected or last.batch is None:
            return NO_AWAITED
        return {row: at for at, row in enumerate(last.batch.yielding)}

    def forward(self, batch: FlatBatch) -> Tensor:
        """Logits of the yielding positions: float32 [yielding positions, vocabulary]."""
        return self._executor.begin(batch).result()

    def propose(self, limits: DraftLimits) -> Proposals:
        """Guess how sequences go on; see `Runner`."""
        rows = self._rows.by_id
        looked_up = self._proposer.look_up(limits.ngram, rows)
        others = {rows[name]: most for name, most in limits.draft.items() if name not in looked_up}
        if not others:
            return Proposals(drafts=looked_up)
        computed = self._thread.call(lambda: self._proposer.compute(others, limits.num_tokens))
        return replace(computed, drafts={**looked_up, **computed.drafts})

    def sample_any(self, logits: Tensor, batch: FlatBatch) -> StepResult:
        """Sample rows of any kind, given the logits of their yielding positions."""
        beams, drawn = split(batch, self._rows)
        failed: dict[str, str] = {}
        tokens = self._tokens_of(logits, drawn, batch, failed)
        candidates = _candidates_of(logits, beams, failed)
        return StepResult(tokens=tokens, candidates=candidates, failed=failed)

    def _tokens_of(
        self,
        logits: Tensor,
        logits_rows: LogitsRows,
        batch: FlatBatch,
        failed: dict[str, str],
    ) -> dict[str, Sequence[SampledToken]]:
        """Append its new tokens to each row; one that has none goes to `failed`."""
        tokens: dict[str, Sequence[SampledToken]] = {}
        if not logits_rows.rows:
            return tokens
        sampled = iter(
            self._sampler.sample(
                logits_rows.logits_of(logits), logits_rows.positions, num_top=batch.num_top
            )
        )
        for row, count in zip(logits_rows.rows, logits_rows.counts, strict=True):
            of_row = list(islice(sampled, count))
            got = accepted(of_row, batch.drafts.get(row.sequence_id, ()) if count > 1 else ())
            if got:
                row.output += [token.token_id for token in got]
                tokens[row.sequence_id] = got
            else:
                failed[row.sequence_id] = NOT_FINITE
        return tokens


def _candidates_of(
    logits: Tensor, logits_rows: LogitsRows, failed: dict[str, str]
) -> dict[str, Sequence[Candidate]]:
    """The continuations of each beam; a beam without any goes to `failed`."""
    candidates: dict[str, Sequence[Candidate]] = {}
    if not logits_rows.rows:
        return candidates
    of_rows = candidates_of(logits_rows.logits_of(logits), logits_rows.rows)
    for row, of_row in zip(logits_rows.rows, of_rows, strict=True):
        if of_row is None:
            failed[row.sequence_id] = NOT_FINITE
        else:
            candidates[row.sequence_id] = of_row
    return candidates
