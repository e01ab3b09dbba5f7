"""The rewrites that MindIE makes of a schedule when it starts, each with a sentence.

`resolve_schedule` fills in the defaults that depend on the schedule alone; the manifest's two
readers, the operator and `tandem apply`, compare schedules by it. `rewrite` adds those that depend
on the model's lengths, which only a replica knows. Both return a schedule that reads in as itself.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pydantic.alias_generators import to_camel

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.slo import Slo

LEFT_TO_REPLICA: Final = ("max_batch_size", "max_iter_times")
"""Fields that a replica chooses where the manifest leaves them out: by memory, by maxSeqLen."""


def resolve_schedule(schedule: ScheduleConfig) -> ScheduleConfig:
    """Return `schedule` with every default that depends on another field filled in.

    Two schedules that mean the same resolve to the same value, so that writing a default down is
    no change. Older names give way to newer ones: supportSelectBatch to stageSelectPolicy.
    What is left to the replica and was not written still counts as not written.
    """
    split = schedule.split_fuse
    return ScheduleConfig(
        **_written(schedule)
        | {
            "strategy": schedule.batching,
            "max_prefill_batch_size": schedule.prefill_rows,
            "max_preempt_count": min(schedule.max_preempt_count, schedule.max_batch_size),
            "support_select_batch": False,
            "stage_select_policy": schedule.stage_policy,
            "max_n": schedule.largest_n,
            "split_fuse": SplitFuseConfig(
                **dict(split)
                | {
                    "enabled": schedule.is_split_fuse,
                    "split_start_batch_size": schedule.split_start_rows,
                    "prefill_chunk_size": split.largest_chunk,
                    "max_long_partial_prefills": split.long_prefills,
                }
            ),
        }
    )


def schedule_document(schedule: ScheduleConfig) -> dict[str, Any]:
    """Return `schedule` under its outside names, without the fields left to the replica."""
    document = schedule.document()
    for name in _open_fields(schedule):
        del document[to_camel(name)]
    return document


def with_slo_defaults(
    schedule: ScheduleConfig, slo: Slo, *, max_seq_len: int | None = None
) -> ScheduleConfig:
    """Return `schedule` with the defaults that latency targets need, where it leaves fields out.

    With a target, templateType is Mix, as only there steps have a budget and prompts an order;
    prompts are cut from the first row on; and answers may be as long as maxSeqLen. Without one,
    the defaults are MindIE's.

    Args:
        schedule: as it was written; with a target, nothing in it needs templateType Standard.
        slo: the targets.
        max_seq_len: None: only the replica knows, which then fills maxIterTimes in.
    """
    if slo.is_given:
        split, update = schedule.split_fuse, dict[str, Any]()
        if "template_type" not in schedule.model_fields_set:
            update["template_type"] = "Mix"
        if "split_start_batch_size" not in split.model_fields_set:
            update["split_fuse"] = split.model_copy(update={"split_start_batch_size": 0})
        schedule = schedule.model_copy(update=update)
    return with_longest_output(schedule, slo, max_seq_len=max_seq_len)


def with_longest_output(
    schedule: ScheduleConfig, slo: Slo, *, max_seq_len: int | None
) -> ScheduleConfig:
    """Fill maxIterTimes in: 512, but with a latency target maxSeqLen, if it is known."""
    if "max_iter_times" in schedule.model_fields_set:
        return schedule
    longest = max_seq_len if slo.is_given else schedule.max_iter_times
    return schedule.model_copy(update={"max_iter_times": longest} if longest else {})


def with_batch_size(schedule: ScheduleConfig, max_batch_size: int) -> ScheduleConfig:
    """Return `schedule` with another maxBatchSize; fields bounded by it are lowered too."""
    # The copy is not checked; resolving lowers what would be refused.
    return resolve_schedule(schedule.model_copy(update={"max_batch_size": max_batch_size}))


def rewrite(
    schedule: ScheduleConfig, *, max_seq_len: int, max_input_token_len: int
) -> tuple[ScheduleConfig, tuple[str, ...]]:
    """Return the schedule in force, and a sentence for each value that was changed.

    The rewrites are those of MindIE's loader, in its order: maxPrefillBatchSize, maxN and
    supportSelectBatch; maxPrefillTokens, where prompts are not cut, raised to the longest request;
    maxBatchSize lowered to maxPrefillTokens. With another maxBatchSize, what may not exceed it is
    lowered too.

    Args:
        schedule: as it was requested, resolved or not.
        max_seq_len: tokens of prompt and output together, as the replica keeps them.
        max_input_token_len: tokens of the longest prompt.
    """
    resolved = resolve_schedule(schedule)
    said = [*_notes_on_defaults(schedule, resolved)]
    longest = min(max_seq_len, max_input_token_len + resolved.max_iter_times)
    if not resolved.cuts_prompts and resolved.max_prefill_tokens < longest:
        said.append(
            f"maxPrefillTokens {resolved.max_prefill_tokens} is raised to {longest}, the longest "
            f"request, as strategy {resolved.batching} cuts no prompt."
        )
        resolved = resolved.model_copy(update={"max_prefill_tokens": longest})
    if resolved.max_batch_size > resolved.max_prefill_tokens:
        said.append(
            f"maxBatchSize {resolved.max_batch_size} is lowered to maxPrefillTokens "
            f"{resolved.max_prefill_tokens}, and with it what may not exceed it."
        )
        resolved = with_batch_size(resolved, resolved.max_prefill_tokens)
    return resolved, tuple(said)


class Consequence(NamedTuple):
    """An effect of one value of the schedule that users may not expect."""

    field: str
    """Its outside name in the schedule."""
    text: str
    """A sentence that begins with the name."""


def consequences(
    schedule: ScheduleConfig, slo: Slo, *, max_seq_len: int | None = None
) -> Iterator[Consequence]:
    """Yield effects of values, most of them MindIE's defaults, that may surprise users.

    Args:
        schedule: with all that is known filled in.
        slo: the targets.
        max_seq_len: None: it is not known yet.
    """
    output = schedule.max_iter_times
    is_known = "max_iter_times" in schedule.model_fields_set or not slo.is_given
    if is_known and (max_seq_len is None or output < max_seq_len):
        yield Consequence(
            "maxIterTimes",
            f"maxIterTimes is {output}: every answer ends after {output} tokens at most, a "
            "reasoning model's perhaps in mid-thought, with finish_reason length; raise it, up to "
            "maxSeqLen.",
        )
    rows = schedule.split_start_rows
    if schedule.is_split_fuse and slo.tpot is None and rows:
        yield Consequence(
            "splitFuse.splitStartBatchSize",
            f"splitFuse.splitStartBatchSize is {rows}: with fewer sequences in the batch prompts "
            f"are not cut, and all requests wait for one of up to maxPrefillTokens "
            f"{schedule.max_prefill_tokens}; lower it to 0 to cut all of them.",
        )


def _notes_on_defaults(requested: ScheduleConfig, resolved: ScheduleConfig) -> Iterator[str]:
    rows = requested.max_prefill_batch_size
    if rows == 0:
        yield f"maxPrefillBatchSize 0 means maxBatchSize, {resolved.max_batch_size}."
    elif rows != resolved.max_prefill_batch_size:
        yield f"maxPrefillBatchSize {rows} is lowered to maxBatchSize {resolved.max_batch_size}."
    if requested.max_n is None:
        yield f"maxN is not given; it is {resolved.max_n}."
    if not requested.support_select_batch:
        return
    if requested.stage_policy == 1:
        yield "supportSelectBatch true means stageSelectPolicy 1."
    else:
        yield f"supportSelectBatch true has no effect with strategy {resolved.batching}."


def _open_fields(schedule: ScheduleConfig) -> Iterator[str]:
    return (name for name in LEFT_TO_REPLICA if name not in schedule.model_fields_set)


def _written(schedule: ScheduleConfig) -> dict[str, Any]:
    """Return all fields but those that are left to the replica."""
    left = set(_open_fields(schedule))
    return {name: value for name, value in schedule if name not in left}
