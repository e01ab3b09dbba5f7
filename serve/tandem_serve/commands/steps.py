"""`tandem steps`: the engine's steps, live."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from rich.console import Console
from rich.live import Live

from tandem_engine.api.steps import MAX_KEPT_STEPS, StepExplanation
from tandem_serve.api.steps import StepsReport
from tandem_serve.commands.common import exit_on_signals, out, print_note, report_errors
from tandem_serve.commands.service_client import ServiceClient, service_url
from tandem_serve.commands.step_view import line, view
from tandem_serve.commands.tables import print_table
from tandem_serve.errors import ServeError

_REPORT: Final = TypeAdapter(StepsReport)

Pause = Callable[[], None]


def steps(
    name: str | None,
    *,
    url: str | None,
    api_key: str | None,
    limit: int,
    every_s: float,
    once: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the last `limit` steps of a service, and further ones as they come unless `once`."""
    with exit_on_signals(), report_errors():
        if once and follow:
            raise ServeError("--once reads once, --follow keeps reading; give only one.")
        with StepsClient(service_url(name, url), api_key) as client:
            if follow:
                _follow(client, limit, lambda: time.sleep(every_s), as_json=as_json)
            elif as_json:
                _print_each(client.report(limit=limit, with_decodes=True).steps, as_json=True)
            elif once or not out.is_terminal:
                print_table(view(client.report(limit=limit), client.url))
            else:
                watch(client, limit, lambda: time.sleep(every_s), out)


class StepsClient(ServiceClient):
    """Client of GET /debug/steps of one service."""

    def report(self, *, since: int = 0, limit: int, with_decodes: bool = False) -> StepsReport:
        """The newest `limit` steps from number `since` on; decodes are only counted by default.

        Raises:
            ServeError: nothing answers, or not with steps; the text says what to do.
        """
        params = {"since": since, "limit": limit, "decodes": with_decodes}
        content = self.request("GET", "/debug/steps", params)
        try:
            return _REPORT.validate_json(content)
        except ValidationError:
            raise self.misunderstood("steps") from None


def watch(client: StepsClient, limit: int, pause: Pause, console: Console) -> None:
    """Show the last steps, again after each pause, until interrupted."""
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            # No more than the terminal has lines for, beside the headline and those of the table.
            shown = max(1, min(limit, console.height - 4))
            live.update(view(client.report(limit=shown), client.url), refresh=True)
            pause()


def new_steps(
    client: StepsClient, limit: int, pause: Pause, *, with_decodes: bool = False
) -> Iterator[StepExplanation]:
    """The last `limit` steps that are over, then each one once, as they come, for ever.

    Where step numbers restart (the engine was restarted, or another replica answers), so does this,
    with a note; another note counts the steps that were missed.
    """
    next_number, most = 0, limit
    while True:
        report = client.report(since=next_number, limit=most, with_decodes=with_decodes)
        if next_number and (report.newest is None or report.newest < next_number - 1):
            print_note(
                "Step numbers restart: the engine was restarted, or another replica answers."
            )
            next_number, most = 0, limit
            continue
        over = [step for step in report.steps if step.seconds is not None]
        if next_number and over and over[0].number > next_number:
            missed = over[0].number - next_number
            print_note(f"{missed} steps are not shown: they came faster than this command reads.")
        yield from over
        if over:
            next_number, most = over[-1].number + 1, MAX_KEPT_STEPS
        pause()


def _follow(client: StepsClient, limit: int, pause: Pause, *, as_json: bool) -> None:
    for step in new_steps(client, limit, pause, with_decodes=as_json):
        _print_each((step,), as_json=as_json)


def _print_each(shown: tuple[StepExplanation, ...], *, as_json: bool) -> None:
    for step in shown:
        text = to_json(step).decode() if as_json else line(step)
        out.print(text, markup=False)
    out.file.flush()
