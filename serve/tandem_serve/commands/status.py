"""`tandem status`: the services on this machine."""

from rich.table import Table

from tandem_serve.commands.common import out, report_errors
from tandem_serve.commands.tables import print_table
from tandem_serve.local.records import Record, read_records
from tandem_serve.local.services import capacity_of, state_of


def status() -> None:
    """Print a table of the services, and of what the KV cache of their replicas holds."""
    with report_errors():
        records = read_records()
        if not records:
            out.print("No service runs here; start one with: tandem serve -f FILE")
            return
        table = Table("name", "status", "replicas", "URL", "KV cache", box=None)
        for record in records:
            table.add_row(*_row(record))
        print_table(table)


def _row(record: Record) -> tuple[str, str, str, str, str]:
    state = state_of(record)
    if state is None:
        return (record.name, "STARTING", "", record.url, "")
    replicas = f"{len(state.running)} of {state.target_replicas}"
    return (record.name, state.status, replicas, record.url, capacity_of(record, state))
