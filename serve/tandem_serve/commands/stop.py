"""`tandem stop`: end local services."""

from tandem_serve.commands.common import out, report_errors
from tandem_serve.local.records import Record, read_records
from tandem_serve.local.services import choose
from tandem_serve.local.services import stop as stop_service


def stop(name: str | None, *, everything: bool) -> None:
    """Stop the service `name`, the only one, or all; with all, none running is not an error."""
    with report_errors():
        for record in read_records() if everything else [choose(name)]:
            _stop(record)


def _stop(record: Record) -> None:
    stop_service(record)
    out.print(f"{record.name} stopped.")
