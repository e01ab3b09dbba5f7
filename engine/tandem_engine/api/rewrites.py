"""What MindIE makes of a schedule when it starts, told instead of done in silence.

`resolve_schedule` fills in what follows from the schedule alone; the manifest's two readers, the
operator and `tandem apply`, compare schedules by it. `rewrite` adds what follows from the model's
lengths, which only a replica knows. Both give a schedule back that reads in as itself.
"""

from collections.abc import Iterator

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig


def resolve_schedule(schedule: ScheduleConfig) -> ScheduleConfig:
    """`schedule` with every default that depends on another field filled in.

    Two schedules that mean the same resolve to the same value, so that writing a default down is
    no change. Older names give way to newer ones: supportSelectBatch to stageSelectPolicy.
    """
    split = schedule.split_fuse
    return ScheduleConfig(
        **dict(schedule)
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


def rewrite(
    schedule: ScheduleConfig, *, max_seq_len: int, max_input_token_len: int
) -> tuple[ScheduleConfig, tuple[str, ...]]:
    """The schedule in force, and a sentence for each value that is not the one that was asked for.

    The rewrites are those of MindIE's loader, in its order: maxPrefillBatchSize, maxN and
    supportSelectBatch; maxPrefillTokens, where prompts are not cut, raised to the longest request;
    maxBatchSize lowered to maxPrefillTokens. With another maxBatchSize, what may not exceed it is
    lowered too.

    Args:
        schedule: as it was asked for, resolved or not.
        max_seq_len: tokens of prompt and output together, as the replica keeps them.
        max_input_token_len: tokens of the longest prompt.
    """
    resolved = resolve_schedule(schedule)
    said = [*_said_of_defaults(schedule, resolved)]
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
        resolved = _with_batch_size(resolved, resolved.max_prefill_tokens)
    return resolved, tuple(said)


def _said_of_defaults(asked: ScheduleConfig, resolved: ScheduleConfig) -> Iterator[str]:
    rows = asked.max_prefill_batch_size
    if rows == 0:
        yield f"maxPrefillBatchSize 0 means maxBatchSize, {resolved.max_batch_size}."
    elif rows != resolved.max_prefill_batch_size:
        yield f"maxPrefillBatchSize {rows} is lowered to maxBatchSize {resolved.max_batch_size}."
    if asked.max_n is None:
        yield f"maxN is not given; it is {resolved.max_n}."
    if not asked.support_select_batch:
        return
    if asked.stage_policy == 1:
        yield "supportSelectBatch true means stageSelectPolicy 1."
    else:
        yield f"supportSelectBatch true has no effect with strategy {resolved.batching}."


def _with_batch_size(resolved: ScheduleConfig, max_batch_size: int) -> ScheduleConfig:
    # The copy is not checked; resolving lowers what would be refused.
    return resolve_schedule(resolved.model_copy(update={"max_batch_size": max_batch_size}))
