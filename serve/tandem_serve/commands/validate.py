"""`tandem validate`: check a manifest, change nothing."""

from pathlib import Path

import yaml

from tandem_serve.commands.common import errors_in_words, out, read_manifest


def validate(file: Path) -> None:
    """Print a manifest with every default filled in, or every problem that it has."""
    with errors_in_words():
        service = read_manifest(file)
        text = yaml.safe_dump(service.resolved(), sort_keys=False, allow_unicode=True)
        out.print(text, end="", markup=False)
