"""Explanations of records of steps: numbers, and a sentence for each sequence that had to wait.

The step loop calls nothing here. It runs on request, on the thread of the caller: a record keeps
references to the inputs of the step, and none of those changes any more.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Final

from tandem_engine.api.steps import RowExplanation, StepExplanation, WaitExplanation
from tandem_engine.scheduler.reason import Reason
from tandem_engine.scheduler.records.records import StepRecord

_CLAUSES: Final[Mapping[Reason, str]] = {
    Reason.TOKENS: "for tokens: {budget} exhausted",
    Reason.BATCH_SIZE: "for a row of the batch: as many sequences run as maxBatchSize allows",
    Reason.PREFILL_ROWS: (
        "for a prompt to be done: as many are in progress as maxPrefillBatchSize and "
        "maxNumPartialPrefills allow"
    ),
    Reason.LONG_PREFILLS: (
        "for a long prompt to be done: as many are in progress as maxLongPartialPrefills allows"
    ),
    Reason.NO_BLOCKS: "for KV blocks: {blocks}",
    Reason.PREFIX_PENDING: "for a prefix that another sequence is computing, to share it",
    Reason.PREEMPTION: "because running sequences lost their KV blocks in this step",
    Reason.SWAPPED_OUT: "for sequences that are swapped out to come back first",
    Reason.OTHER_STAGE: "for another kind of step: this one is for {stage}",
    Reason.BATCH_FORMING: "for more requests: its batch is forming{wake}",
    Reason.BATCH_NOT_OVER: "for the batch that runs to end",
    Reason.CHUNK_TOO_SMALL: "because the TPOT target leaves too few tokens for a chunk",
    Reason.BEAMS_TOGETHER: "for the other beams of its request",
}
_FIRST_IN_LINE: Final = "The first in line"


def explain(
    records: Iterable[StepRecord], *, epoch_s: float = 0.0, with_decodes: bool = True
) -> list[StepExplanation]:
    """Explain the steps of `records`, in their order.

    Args:
        records: Of one engine.
        epoch_s: Seconds to add to the engine's clock for seconds since 1970.
        with_decodes: List the decode rows, of which there may be hundreds in every step; False:
            count them only.
    """
    return [_explain(record, epoch_s, with_decodes=with_decodes) for record in records]


def _explain(record: StepRecord, epoch_s: float, *, with_decodes: bool) -> StepExplanation:
    step = record.step
    decode_tokens = sum(step.num_tokens[: step.num_decodes])
    return StepExplanation(
        number=record.number,
        started=record.started + epoch_s,
        seconds=record.seconds if isfinite(record.ended) else None,
        predicted_s=record.predicted_s,
        token_budget=record.token_budget,
        max_token_budget=record.max_token_budget or None,
        num_decode_tokens=decode_tokens,
        num_prefill_tokens=step.total_tokens - decode_tokens,
        num_decodes=step.num_decodes,
        num_drafts=sum(map(len, step.drafts.values())),
        num_accepted=record.num_accepted,
        rows=tuple(_rows(record, first=0 if with_decodes else step.num_decodes)),
        recomputed=step.preempted,
        swapped=record.swapped,
        blocked_by=None
        if record.blocked_by is None
        else _wait(record, record.first, record.blocked_by),
        skipped=tuple(_wait(record, sequence_id, reason) for sequence_id, reason in record.skipped),
        num_waiting=record.num_waiting,
        num_swapped=record.num_swapped,
    )


def _rows(record: StepRecord, *, first: int) -> Iterator[RowExplanation]:
    step = record.step
    for at in range(first, len(step.sequence_ids)):
        sequence_id = step.sequence_ids[at]
        yield RowExplanation(
            sequence_id=sequence_id,
            kind="decode" if at < step.num_decodes else "chunk",
            num_tokens=step.num_tokens[at],
            start=step.starts[at],
            num_drafts=len(step.drafts.get(sequence_id, ())),
            num_known=None if at < step.num_decodes else record.known[at - step.num_decodes],
            num_hit=record.hits.get(sequence_id),
        )


def _wait(record: StepRecord, sequence_id: str | None, reason: Reason) -> WaitExplanation:
    clause = _CLAUSES[reason].format(
        budget=f"the token budget of {record.token_budget} is"
        if record.token_budget
        else "those of the step are",
        stage="decodes" if record.step.num_decodes else "prompts",
        wake=_wake(record),
        blocks=_blocks(record),
    )
    text = f"{sequence_id or _FIRST_IN_LINE} waits {clause}."
    return WaitExplanation(sequence_id=sequence_id, reason=reason.value, text=text)


def _blocks(record: StepRecord) -> str:
    free, needed = record.num_free_blocks, record.first_needs
    if free < needed:
        return f"{free} free, {needed} needed"
    return f"{free} free, but reserved for running sequences (noEvict)"


def _wake(record: StepRecord) -> str:
    """Return the time that a forming batch goes on waiting, at most."""
    if not isfinite(record.wake_at):
        return ""
    return f", for {max(0.0, record.wake_at - record.started):.3f} s more at most"
