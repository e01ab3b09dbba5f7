"""`tandem quantize`: write a copy of a checkpoint with its linear layers in 8 bits."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tandem_engine.api.errors import EngineError
from tandem_serve.commands.common import EXIT_FAILED, err, out, print_error
from tandem_serve.commands.tables import print_table

if TYPE_CHECKING:
    from tandem_engine.convert import Conversion, OutputFormat

_MIB: Final = 2**20
_SHOWN: Final = 10


def quantize(
    source: Path, target: Path, *, output_format: "OutputFormat", head: bool, show_all: bool
) -> None:
    """Write `target`; then show the sizes before and after, and the error of each layer."""
    try:
        conversion = _convert(source, target, output_format, head=head)
    except EngineError as error:
        print_error(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    except OSError as error:
        print_error(f"{error.filename or target}: {error.strerror}; nothing was written")
        raise typer.Exit(EXIT_FAILED) from None
    _show(conversion, target, show_all=show_all)


def _convert(
    source: Path, target: Path, output_format: "OutputFormat", *, head: bool
) -> "Conversion":
    try:
        # torch is heavy, and the operator's image has none.
        from tandem_engine.convert import quantize_checkpoint  # noqa: PLC0415
    except ImportError as error:
        print_error(f"{error}; quantize needs the engine: pip install '.[engine]' in a checkout")
        raise typer.Exit(EXIT_FAILED) from None

    size = DownloadColumn(binary_units=True)
    columns = (TextColumn("{task.description}"), BarColumn(), size, TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("Quantising", total=None)
        return quantize_checkpoint(
            source,
            target,
            output_format=output_format,
            head=head,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _show(conversion: "Conversion", target: Path, *, show_all: bool) -> None:
    layers = conversion.layers
    shown = layers if show_all else layers[:_SHOWN]
    table = Table("layer", "outputs × inputs", "error", box=None, pad_edge=False)
    for layer in shown:
        table.add_row(layer.name, " × ".join(map(str, layer.shape)), f"{layer.error:.3%}")
    print_table(table)
    if left := len(layers) - len(shown):
        out.print(f"and {left} layers with smaller errors; --all shows them")
    before, after = conversion.bytes_before, conversion.bytes_after
    out.print(
        f"{target}: {before / _MIB:.1f} MiB of weights became {after / _MIB:.1f} MiB "
        f"({after / before:.0%}); {len(layers)} linear layers are in 8 bits",
        markup=False,
    )
