"""Steps of an engine as text for a terminal: a table, or a line each. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem_engine.api.steps import RowExplanation, StepExplanation, WaitExplanation
from tandem_serve.api.steps import StepsReport

_BAR_WIDTH: Final = 24
# Distinct without colours too.
_DECODE, _PREFILL, _REST = "█", "▓", "░"
_MOST_NAMED: Final = 3
"""Sequences that are named before the others are only counted."""
_LONGEST_ID: Final = 20
"""Characters of an id that a table shows whole."""


def view(report: StepsReport, url: str) -> RenderableType:
    """Render a replica's state and a table of its steps."""
    return Group(headline(report, url), legend(), table(report.steps))


def headline(report: StepsReport, url: str) -> Text:
    """Queues, KV blocks and capacity in one line."""
    stats, limits = report.stats, report.limits
    num_held = stats.num_kv_blocks - stats.num_free_kv_blocks
    num_empty = stats.num_free_kv_blocks - stats.num_cached_kv_blocks
    return Text.assemble(
        (report.model, "bold"),
        f" at {url}: {stats.num_running} running, {stats.num_waiting} waiting, "
        f"{stats.num_swapped} swapped out; {stats.num_kv_blocks} KV blocks: {num_held} held, "
        f"{stats.num_cached_kv_blocks} cached, {num_empty} free; capacity for "
        f"{limits.max_sequences} × {limits.max_seq_len} tokens",
    )


def legend() -> Text:
    """Explain the bars."""
    return Text.assemble(
        (_DECODE, "cyan"), " decode  ", (_PREFILL, "green"), " prefill  ", (_REST, "dim"),
        " left of the token budget", style="dim"
    )  # fmt: skip


def table(steps: Sequence[StepExplanation]) -> Table:
    """A row for each step, the newest first: where lines are lacking, the oldest are cut off."""
    made = Table(box=None, pad_edge=False)
    for name in ("step", "ms", "predicted", "tokens"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("decode and prefill", no_wrap=True, min_width=_BAR_WIDTH)
    made.add_column("rows", min_width=12)
    made.add_column("waiting, and why", min_width=20)
    # Where there is no budget, bars can still be compared with each other.
    most = max((step.num_tokens for step in steps), default=1)
    for step in map(_with_short_ids, reversed(steps)):
        made.add_row(
            str(step.number),
            _milliseconds(step.seconds),
            _milliseconds(step.predicted_s),
            _tokens(step),
            bar(step, most=most),
            _rows(step),
            Text("; ".join(left_out(step))),
        )
    return made


def bar(step: StepExplanation, *, most: int, width: int = _BAR_WIDTH) -> Text:
    """Decode and prefill tokens against the budget, or against `most` where there is none."""
    whole = max(step.token_budget or most, step.num_tokens, 1)
    num_decode = _cells(step.num_decode_tokens, whole, width)
    num_prefill = min(_cells(step.num_prefill_tokens, whole, width), width - num_decode)
    rest = _REST if step.token_budget else " "
    return Text.assemble(
        (_DECODE * num_decode, "cyan"),
        (_PREFILL * num_prefill, "green"),
        (rest * (width - num_decode - num_prefill), "dim"),
    )


def line(step: StepExplanation) -> str:
    """All of a step in one line."""
    took = f"{_milliseconds(step.seconds)} ms"
    if step.predicted_s is not None:
        took += f" ({_milliseconds(step.predicted_s)} predicted)"
    when = datetime.fromtimestamp(step.started).astimezone().strftime("%H:%M:%S.%f")[:-3]
    said = [_rows(step), *left_out(step)]
    return f"{step.number}  {when}  {took}  {_tokens(step)} tokens: {'; '.join(said)}"


def left_out(step: StepExplanation) -> Iterator[str]:
    """Yield preempted sequences, skipped sequences, and the reason of the first in line."""
    if step.recomputed:
        yield f"preempted, to be recomputed: {_named(step.recomputed)}"
    if step.swapped:
        yield f"swapped out: {_named(step.swapped)}"
    for wait in step.skipped[:_MOST_NAMED]:
        yield wait.text.removesuffix(".")
    if len(step.skipped) > _MOST_NAMED:
        yield f"{len(step.skipped) - _MOST_NAMED} more sequences are skipped"
    if step.blocked_by is not None:
        behind = f" ({step.num_behind} behind it)" if step.num_behind else ""
        yield f"{step.blocked_by.text.removesuffix('.')}{behind}"


def _rows(step: StepExplanation) -> str:
    chunks = [row for row in step.rows if row.kind == "chunk"]
    parts = []
    if step.num_decodes:
        drafts = _drafts(step) if step.num_drafts else ""
        parts.append(f"{step.num_decodes} decode{'s' * (step.num_decodes > 1)}{drafts}")
    parts += [_chunk(row) for row in chunks[:_MOST_NAMED]]
    if len(chunks) > _MOST_NAMED:
        parts.append(f"{len(chunks) - _MOST_NAMED} more chunks")
    return ", ".join(parts) or "no sequence"


def _drafts(step: StepExplanation) -> str:
    """Show drafts; how many of them were right is known when the step has ended."""
    right = "" if step.seconds is None else f", {step.num_accepted} accepted"
    return f" with {step.num_drafts} draft{'s' * (step.num_drafts > 1)}{right}"


def _chunk(row: RowExplanation) -> str:
    """Show the prompt tokens that a sequence got: from (exclusive) - to, of all."""
    whole = "" if row.num_known is None else f" of {row.num_known}"
    hit = f" ({row.num_hit} cached)" if row.num_hit else ""
    return f"{row.sequence_id} {row.start}-{row.start + row.num_tokens}{whole}{hit}"


def _named(sequence_ids: Sequence[str]) -> str:
    more = len(sequence_ids) - _MOST_NAMED
    named = ", ".join(sequence_ids[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named


def _tokens(step: StepExplanation) -> str:
    return f"{step.num_tokens}/{step.token_budget}" if step.token_budget else str(step.num_tokens)


def _with_short_ids(step: StepExplanation) -> StepExplanation:
    """The step with ids that leave room for more than themselves; lines have them whole."""
    return replace(
        step,
        rows=tuple(replace(row, sequence_id=_short(row.sequence_id)) for row in step.rows),
        recomputed=tuple(map(_short, step.recomputed)),
        swapped=tuple(map(_short, step.swapped)),
        skipped=tuple(map(_with_short_id, step.skipped)),
        blocked_by=None if step.blocked_by is None else _with_short_id(step.blocked_by),
    )


def _with_short_id(wait: WaitExplanation) -> WaitExplanation:
    whole = wait.sequence_id
    return replace(wait, text=wait.text.replace(whole, _short(whole))) if whole else wait


def _short(sequence_id: str) -> str:
    """The beginning, which is that of the request's id, and the end, which no two share."""
    if len(sequence_id) <= _LONGEST_ID:
        return sequence_id
    return f"{sequence_id[:8]}…{sequence_id[-6:]}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _cells(part: int, whole: int, width: int) -> int:
    """Cells of a part of the bar: at least one, unless the part is 0."""
    return 0 if not part else max(1, round(width * part / whole))
