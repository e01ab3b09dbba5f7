"""`tandem timeline`: a trace of the engine's next steps, in a file."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from rich.markup import escape

from tandem_serve.api.timeline_summary import TimelineSummary
from tandem_serve.commands.common import err, exit_on_signals, out, report_errors
from tandem_serve.commands.service_client import ServiceClient, service_url
from tandem_serve.commands.whole_file import whole_file
from tandem_serve.errors import ServeError

_SPARE_S: Final = 60.0
"""Seconds for the answer, beside those of the recording."""
_SUMMARY: Final = TypeAdapter(TimelineSummary)

Draw = Callable[[dict[str, Any], TimelineSummary, BinaryIO], None]


def timeline(
    name: str | None,
    *,
    url: str | None,
    api_key: str | None,
    num_steps: int,
    within_s: float,
    output: Path,
    png: Path | None,
) -> None:
    """Record the next `num_steps` steps of a service, and write them to `output` and `png`."""
    with exit_on_signals(), report_errors(), ExitStack() as held:
        if png is not None and png.absolute() == output.absolute():
            raise ServeError(f"-o and --png are both {png}; name two files.")
        # What cannot be written is refused before anything is recorded.
        draw = _drawing() if png is not None else None
        client = held.enter_context(TimelineClient(service_url(name, url), api_key))
        file = held.enter_context(whole_file(output, "-o"))
        picture = held.enter_context(whole_file(png, "--png")) if png is not None else None
        err.print(f"recording up to {num_steps} steps, for {within_s:g} s at most…")
        trace = client.record(num_steps, within_s)
        summary = client.summary(trace, within_s)
        file.write(trace)
        if draw is not None and picture is not None:
            draw(from_json(trace), summary, picture)
        held.close()
        out.print(f"{escape(summary_line(summary))}", highlight=False)
        shown = f" and {png}" if png is not None else ""
        out.print(f"{output}{shown}: open the trace at https://ui.perfetto.dev", markup=False)


class TimelineClient(ServiceClient):
    """Client of POST /debug/timeline of one service."""

    def record(self, num_steps: int, within_s: float) -> bytes:
        """The trace of the next `num_steps` steps.

        Raises:
            ServeError: nothing answers, or it refuses; the text says what to do.
        """
        params = {"steps": num_steps, "withinSeconds": within_s}
        return self.request("POST", "/debug/timeline", params, timeout_s=within_s + _SPARE_S)

    def summary(self, trace: bytes, within_s: float) -> TimelineSummary:
        """The figures that a trace comes with.

        Raises:
            ServeError: it is no trace, or has no steps; the text says what to do.
        """
        try:
            summary = _SUMMARY.validate_python(from_json(trace)["otherData"])
        except (ValidationError, ValueError, KeyError, TypeError):
            raise self.misunderstood("a timeline") from None
        if not summary.num_steps:
            raise ServeError(
                f"{self.url} computed no step within {within_s:g} s, so there is nothing to write; "
                "send it a request meanwhile, or wait longer with --within."
            )
        return summary


def summary_line(summary: TimelineSummary) -> str:
    """The figures of a timeline in a line."""
    steps = _counted(summary.num_steps, "step")
    said = f"{steps} on {_counted(summary.num_ranks, 'rank')}, {summary.num_slices} slices; "
    if not summary.num_cut_steps:
        return f"{said}no step was cut"
    hidden, whole = summary.hidden_s * 1e3, summary.communication_s * 1e3
    overlap = "" if summary.overlap is None else f", an overlap of {summary.overlap:.2f}"
    return (
        f"{said}{_counted(summary.num_cut_steps, 'cut step')} hid {hidden:.1f} of {whole:.1f} ms "
        f"of communication{overlap}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _drawing() -> Draw:
    """The function that draws.

    Raises:
        ServeError: matplotlib is not installed.
    """
    try:
        # Only where a picture is asked for: it is large, and no dependency.
        from tandem_serve.commands.timeline_picture import draw  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ServeError(
            "--png needs matplotlib: pip install matplotlib, or leave --png out."
        ) from None
    return draw
