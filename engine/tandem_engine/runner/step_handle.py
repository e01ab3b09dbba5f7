"""The handle of a step that was submitted: its computation, its tokens, its failure."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from torch import Tensor

from tandem_engine.api.errors import ReplicaLost
from tandem_engine.api.step import SampledToken, Step, StepResult
from tandem_engine.device.host_memory import HostCopy
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.pending_logits import PendingLogits
from tandem_engine.runner.prompt_scoring import PromptScoring
from tandem_engine.sampling.sampler import to_sampled_tokens
from tandem_engine.sampling.step_tokens import StepTokens

_LOG = logging.getLogger(__name__)

Sample = Callable[[Tensor, FlatBatch], StepResult]

NOT_FINITE: Final = "the model's logits are not finite numbers"


class ModelStepHandle:
    """One step whose rows yield one token each; implements `tandem_engine.api.step.StepHandle`.

    The thread that computes and the one that submitted the step both use it: the first needs
    the tokens of the step before, where it draws or penalises, and the other delivers them.

    Args:
        step: The step.
        batch: Its tensors; None: it has no rows.
        before: The previous step, if its tokens are fed into this one.
        sample: Samples rows that yield anything but one token each.
        reading: Context in which results are read; see `Executor.reading`.
        error: Reason why its rows cannot be computed. Its copies are made all the same, since they
            move blocks of other sequences, too.
    """

    def __init__(
        self,
        step: Step,
        batch: FlatBatch | None,
        before: "ModelStepHandle | None",
        sample: Sample,
        error: Exception | None = None,
        *,
        reading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.step = step
        self.batch = batch
        self.before = before
        self.removed: Sequence[str] = ()
        """Sequences that were removed before it was handed in."""
        self.tokens: StepTokens | None = None
        """A token for each row that yields; None: it failed, or is not done."""
        self.is_collected = False
        """True once its caller has the result."""
        self.has_copied = False
        """True once its copies are made: a failure is then confined to its rows."""
        self.pending: PendingLogits | None = None
        """Logits that later stages compute; None: it has not come so far, or has none."""
        self._sample = sample
        self._reading = reading
        # Its tokens, or none, on their way to the host.
        self._arriving: HostCopy | None = None
        self._logits: Tensor | None = None
        self._result: StepResult | None = None
        self._error = error
        self._commit_lock = threading.Lock()
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        """True once it is computed, or has failed."""
        return self._done.is_set()

    @property
    def has_failed(self) -> bool:
        """True if it is known already to have failed."""
        return self._error is not None

    def compute(self, work: Callable[["ModelStepHandle"], None]) -> None:
        """Run `work`, which may end with `set_tokens` or `set_logits`; an exception is kept."""
        try:
            self._catch(lambda: work(self))
        finally:
            self._end()

    def begin(self, work: Callable[["ModelStepHandle"], None]) -> None:
        """Run the first part of `work`, which sets `pending` where there is another.

        `compute` runs that; if there is none, or the first fails, the step is done.
        """
        self._catch(lambda: work(self))
        if self._error is not None or self.pending is None:
            self._end()

    def wait(self) -> None:
        """Wait until it is computed."""
        self._done.wait()

    def set_tokens(self, tokens: StepTokens) -> None:
        """Set the sampled tokens, which a device may still be computing."""
        self.tokens = tokens
        self._arriving = HostCopy(tokens.token_ids)

    def set_end(self, logits: Tensor) -> None:
        """Have `result` wait for logits that nothing is sampled from: a device computes them."""
        self._arriving = HostCopy(logits.new_empty(0))

    def set_logits(self, logits: Tensor) -> None:
        """Set the logits of rows that are sampled when the result is asked for.

        They fork, move and end, which the thread that computes must not do to them.
        """
        self._logits = logits

    def tokens_to_feed(self) -> Tensor | None:
        """Return the tokens for the next step; None: this one has failed, with all of its rows.

        Raises:
            RuntimeError: they are not known yet, which is a bug of the caller.
        """
        if self.tokens is None and self._error is None:
            raise RuntimeError("The step before yields more than a token a row; this is a bug.")
        return None if self.tokens is None else self.tokens.token_ids

    def commit(self) -> None:
        """Append the tokens to the rows, once; an exception is kept.

        The next step calls it, too, and may have other rows that can continue.
        """
        with self._commit_lock:
            if self._error is not None or self._result is not None or self.tokens is None:
                return
            self._catch(self._append_tokens)

    def result(self) -> StepResult:
        """Wait for the end; see `tandem_engine.api.step.StepHandle`."""
        self._done.wait()
        self.is_collected = True
        self.commit()
        if self._error is None and self.batch is not None:
            self._catch(self._finish)
        if self._error is not None:
            return self._lost(self._error)
        return self._result or StepResult()

    def _end(self) -> None:
        self.before = self.pending = None
        self._done.set()

    def _catch(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the step fails with it, and no other
            self._error = error

    def _append_tokens(self) -> None:
        if self.batch is not None and self.tokens is not None and self._arriving is not None:
            with self._reading():
                token_ids: list[int] = self._arriving.wait().tolist()
                logprobs = self.tokens.logprobs.read(token_ids)
            self._result = _append(self.batch, to_sampled_tokens(token_ids, logprobs))

    def _finish(self) -> None:
        batch, logits, self._logits = self.batch, self._logits, None
        if batch is None or (self._result is not None and batch.scoring is None):
            return
        with self._reading():
            if self._result is None and logits is not None:
                self._result = self._sample(logits, batch)
            elif self._result is None and self._arriving is not None:
                self._arriving.wait()
            if batch.scoring is not None:
                self._result = _with_scores(self._result or StepResult(), batch.scoring)

    def _lost(self, error: Exception) -> StepResult:
        """Fail its rows; raise if its copies failed, too, or no other step can be computed."""
        _LOG.error("A step of %d rows failed", len(self.step.sequence_ids), exc_info=error)
        if not self.has_copied or isinstance(error, ReplicaLost):
            raise error
        cause = f"{type(error).__name__}: {error}"
        return StepResult(failed=dict.fromkeys(self.step.sequence_ids, cause))


def _with_scores(result: StepResult, scoring: PromptScoring) -> StepResult:
    prompt_logprobs, not_finite = scoring.by_sequence()
    failed = {**dict.fromkeys(not_finite, NOT_FINITE), **result.failed}
    return replace(result, prompt_logprobs=prompt_logprobs, failed=failed)


def _append(batch: FlatBatch, tokens: list[SampledToken | None]) -> StepResult:
    """Append a token to each row that yields."""
    failed: dict[str, str] = {}
    got: dict[str, Sequence[SampledToken]] = {}
    for row, token in zip(batch.yielding, tokens, strict=True):
        if token is None:
            failed[row.sequence_id] = NOT_FINITE
        else:
            row.output.append(token[0])
            got[row.sequence_id] = (token,)
    return StepResult(tokens=got, failed=failed)
