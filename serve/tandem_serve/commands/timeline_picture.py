"""Draws a trace: a row for each stream of each rank, in matplotlib, which is no dependency."""

from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch

from tandem_serve.api.timeline_summary import TimelineSummary
from tandem_serve.api.trace_events import STEP_CATEGORY

Event = dict[str, Any]

_COLOURS: Final = {
    ("stage", None): ("#8c8c8c", "computation, whole step"),
    ("stage", 0): ("#3274a1", "computation, half 0"),
    ("stage", 1): ("#d9722b", "computation, half 1"),
    ("collective", None): ("#c9c9c9", "communication, whole step"),
    ("collective", 0): ("#9cc3e0", "communication, half 0"),
    ("collective", 1): ("#f3bd94", "communication, half 1"),
}
"""Dark: computation; light: communication."""
_STEP_COLOUR: Final = "#f2f2f2"
_EDGE_COLOUR: Final = "#555555"
_MOST_EDGES: Final = 1000
_MOST_ARROWS: Final = 400
"""More of them would cover what they join."""
_WIDTH_INCHES: Final = 16.0
_AXES_SHARE: Final = 0.85
_CHAR_INCHES: Final = 0.075
_BAR: Final = 0.72
_DPI: Final = 130
_US_PER_MS: Final = 1e3


def draw(trace: dict[str, Any], summary: TimelineSummary, file: BinaryIO) -> None:
    """Write a picture of `trace` in PNG."""
    picture = _Picture.of(trace["traceEvents"])
    height = 1.9 + 0.42 * len(picture.rows)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots()
    _draw_bars(axes, picture)
    _draw_texts(axes, picture)
    _draw_arrows(axes, picture)
    _label(axes, picture)
    axes.set_title(title(summary, picture.span_ms), loc="left")
    figure.legend(
        handles=_legend(picture), loc="outside lower center", ncols=6, fontsize=8, frameon=False
    )
    figure.savefig(file, format="png", dpi=_DPI)


def title(summary: TimelineSummary, span_ms: float) -> str:
    """What was recorded, in a line."""
    said = (
        f"{summary.model}: steps {summary.num_steps} (cut: {summary.num_cut_steps}), "
        f"ranks {summary.num_ranks}, {span_ms:.1f} ms"
    )
    if summary.overlap is None:
        return said
    hidden, whole = summary.hidden_s * 1e3, summary.communication_s * 1e3
    return (
        f"{said}\ncut steps hid {hidden:.1f} of {whole:.1f} ms of communication; "
        f"overlap {summary.overlap:.2f}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    """The events of a trace, and the rows that they are drawn in."""

    slices: list[Event]
    flows: list[tuple[Event, Event]]
    rows: dict[int, int]
    """Thread → row, from above."""
    labels: list[str]
    """Of each row."""
    span_ms: float

    @classmethod
    def of(cls, events: list[Event]) -> "_Picture":
        slices = [event for event in events if event["ph"] == "X"]
        processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        threads = [event for event in events if event["name"] == "thread_name"]
        threads.sort(key=lambda event: event["tid"])
        starts = {event["id"]: event for event in events if event["ph"] == "s"}
        return cls(
            slices=slices,
            flows=[(starts[event["id"]], event) for event in events if event["ph"] == "f"],
            rows={event["tid"]: row for row, event in enumerate(threads)},
            labels=[f"{processes[event['pid']]}  {event['args']['name']}" for event in threads],
            span_ms=max((event["ts"] + event["dur"] for event in slices), default=0.0) / _US_PER_MS,
        )

    def fits(self, text: str, duration_ms: float) -> bool:
        """True: `text` can be read inside a bar of this duration."""
        inches = duration_ms / (self.span_ms or 1.0) * _WIDTH_INCHES * _AXES_SHARE
        return len(text) * _CHAR_INCHES < inches


def _draw_bars(axes: Axes, picture: _Picture) -> None:
    """Draw all slices, those of one row and colour at once: there may be many thousands."""
    bars: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for event in picture.slices:
        extent = (event["ts"] / _US_PER_MS, event["dur"] / _US_PER_MS)
        bars.setdefault((picture.rows[event["tid"]], _colour(event)), []).append(extent)
    # Among many, some are narrower than an edge.
    has_edges = len(picture.slices) <= _MOST_EDGES
    for (row, colour), extents in bars.items():
        axes.broken_barh(
            extents, (row - _BAR / 2, _BAR), facecolors=colour, zorder=2,
            edgecolors=_EDGE_COLOUR if colour == _STEP_COLOUR else "white",
            linewidth=0.5 if has_edges else 0.0,
        )  # fmt: skip


def _colour(event: Event) -> str:
    if event["cat"] == STEP_CATEGORY:
        return _STEP_COLOUR
    return _COLOURS[event["cat"], event["args"]["half"]][0]


def _draw_texts(axes: Axes, picture: _Picture) -> None:
    for event in picture.slices:
        begin, duration = event["ts"] / _US_PER_MS, event["dur"] / _US_PER_MS
        text = _text(event, picture, duration)
        if text:
            axes.text(
                begin + duration / 2, picture.rows[event["tid"]], text, ha="center", va="center",
                fontsize=7, color="white" if event["cat"] == "stage" else "#222222", zorder=4,
            )  # fmt: skip


def _text(event: Event, picture: _Picture, duration_ms: float) -> str:
    """The longest text that fits into a bar; empty: none does."""
    args = event["args"]
    texts = [event["name"]]
    if event["cat"] == STEP_CATEGORY:
        why = args["whole_because"] and f", whole: {args['whole_because']}"
        halves = " + ".join(str(half["tokens"]) for half in args["halves"])
        cut = f", cut into {halves}" if halves else why or ""
        whole = f"{event['name']}: {args['rows']} rows, {args['tokens']} tokens"
        texts = [f"{whole}{cut}", whole, event["name"], str(args["step"])]
    return next((text for text in texts if picture.fits(text, duration_ms)), "")


def _draw_arrows(axes: Axes, picture: _Picture) -> None:
    if len(picture.flows) > _MOST_ARROWS:
        return
    for start, finish in picture.flows:
        source, target = picture.rows[start["tid"]], picture.rows[finish["tid"]]
        # From the edge of one bar to the edge of the other.
        edge = _BAR / 2 if target > source else -_BAR / 2
        ends = (
            (start["ts"] / _US_PER_MS, source + edge),
            (finish["ts"] / _US_PER_MS, target - edge),
        )
        axes.add_patch(
            FancyArrowPatch(
                *ends, arrowstyle="-|>", mutation_scale=6, linewidth=0.5, color="#444444",
                shrinkA=0, shrinkB=0, zorder=3,
            )
        )  # fmt: skip


def _label(axes: Axes, picture: _Picture) -> None:
    axes.set_yticks(range(len(picture.labels)), picture.labels)
    axes.set_ylim(len(picture.labels) - 0.4, -0.6)
    axes.set_xlim(0.0, 1.003 * picture.span_ms or 1.0)
    axes.set_xlabel("ms since the first step began")
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _legend(picture: _Picture) -> list[Patch]:
    """The colours that are in the picture."""
    shown = {(event["cat"], event["args"].get("half")) for event in picture.slices}
    return [
        Patch(color=colour, label=label)
        for key, (colour, label) in _COLOURS.items()
        if key in shown
    ]
