"""`tandem apply`: apply a manifest to a running local service."""

from pathlib import Path
from typing import Final

from rich.table import Table

from tandem_serve.api.changes import Change, ChangeClass, classify
from tandem_serve.api.problems import as_yaml
from tandem_serve.api.spec import InferenceService
from tandem_serve.commands.common import (
    Progress,
    exit_on_signals,
    out,
    read_manifest,
    report_errors,
)
from tandem_serve.commands.local_checks import check_runs_locally
from tandem_serve.errors import ServeError
from tandem_serve.local.records import Record, find_record
from tandem_serve.local.services import applied
from tandem_serve.local.services import apply as apply_service

_COLOURS: Final = {
    ChangeClass.LIVE: "green",
    ChangeClass.IN_PLACE: "cyan",
    ChangeClass.REPLACE: "yellow",
}


def apply(file: Path, *, verbose: bool) -> None:
    """Apply `file` to its running service."""
    with exit_on_signals(), report_errors(verbose=verbose):
        service = read_manifest(file)
        running = find_record(service.name)
        if running is None:
            raise ServeError(
                f"No service '{service.name}' runs here; start it with: tandem serve -f {file}"
            )
        check_runs_locally(service, api_keys=running.api_keys)
        apply_to(running, service, verbose=verbose)


def apply_to(record: Record, service: InferenceService, *, verbose: bool) -> None:
    """Show the changes, and apply them.

    Raises:
        ServeError: it failed; the service runs as before.
    """
    changes = classify(applied(record), service)
    if not changes:
        out.print(f"{record.name} is up to date, at {record.url}")
        return
    out.print(_table(changes))
    with Progress(verbose=verbose) as progress, progress.phase(f"Changing {record.name}") as report:
        apply_service(record, service, report=report)
    out.print(f"{record.name} serves at {record.url}")


def _table(changes: list[Change]) -> Table:
    table = Table("field", "from", "to", "change", box=None, pad_edge=False)
    for change in changes:
        words = f"[{_COLOURS[change.change_class]}]{change.change_class.words}[/]"
        table.add_row(change.path, as_yaml(change.old), as_yaml(change.new), words)
    return table
