"""`python -m tandem_operator.crd [--check]`: write the CRD into the checkout, or compare it."""

import argparse
import sys
from pathlib import Path
from typing import Final

from tandem_operator.crd.manifest import CHART_FILE, CRD_FILE, chart_file, crd_file

CHECKOUT: Final = Path(__file__).resolve().parents[3]


def main(arguments: list[str] | None = None) -> int:
    """Write both files, or with --check name those that differ; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tandem_operator.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when files differ")
    parser.add_argument("--root", type=Path, default=CHECKOUT, help="checkout (default: this one)")
    options = parser.parse_args(arguments)
    if not (options.root / "pyproject.toml").is_file():
        parser.error(f"{options.root} is not a checkout of Tandem; name one with --root")
    files = {options.root / CRD_FILE: crd_file(), options.root / CHART_FILE: chart_file()}
    return _check(files) if options.check else _write(files)


def _check(files: dict[Path, str]) -> int:
    stale = [str(path) for path, text in files.items() if _read(path) != text]
    if stale:
        sys.stderr.write(
            f"{' and '.join(stale)}: not up to date; run python -m tandem_operator.crd\n"
        )
    return int(bool(stale))


def _write(files: dict[Path, str]) -> int:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
