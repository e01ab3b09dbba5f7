"""`tandem validate`: check a manifest, change nothing."""

from pathlib import Path

import yaml

from tandem_serve.api.notes import notes
from tandem_serve.commands.common import out, print_note, read_manifest, report_errors
from tandem_serve.commands.rank_table import (
    check_device,
    check_draft,
    check_ranks,
    note_slow_sizes,
    show_ranks,
)


def validate(file: Path) -> None:
    """Print a manifest with every default filled in, or every problem that it has.

    Notes on surprising defaults, and the memory of each rank, go to standard error.
    """
    with report_errors():
        service = read_manifest(file)
        check_ranks(service)
        check_device(service)
        check_draft(service)
        text = yaml.safe_dump(service.resolved(), sort_keys=False, allow_unicode=True)
        out.print(text, end="", markup=False)
        for note in notes(service.spec):
            print_note(note)
        note_slow_sizes(service)
        show_ranks(service)
