"""`tandem serve`: run a service on this machine."""

from pathlib import Path

import typer

from tandem_serve.api.spec import InferenceService
from tandem_serve.commands.apply import apply_to
from tandem_serve.commands.common import (
    EXIT_FAILED,
    Progress,
    check_checkpoint,
    ended_by_signals,
    errors_in_words,
    out,
    read_manifest,
)
from tandem_serve.errors import ServeError
from tandem_serve.local import LocalRay, local_ray
from tandem_serve.records import Record, RecordExists, find_record
from tandem_serve.services import connect, deploy
from tandem_serve.supervisor import EXIT_TOLD


def serve(file: Path, *, host: str, port: int, detach: bool, verbose: bool) -> None:
    """Run the service of `file` here; detached, bring one that runs already to it."""
    with ended_by_signals(), errors_in_words(verbose=verbose):
        service = read_manifest(file)
        check_checkpoint(service)
        running = find_record(service.name)
        if running is None:
            _run(service, host=host, port=port, detach=detach, verbose=verbose)
        elif detach:
            apply_to(running, service, verbose=verbose)
        else:
            raise _runs_already(running)


def _run(service: InferenceService, *, host: str, port: int, detach: bool, verbose: bool) -> None:
    try:
        with local_ray(service, host=host, port=port, echo=verbose) as local:
            _start(local, service, verbose=verbose)
            if detach:
                local.detach()
            else:
                _stay(local)
    except RecordExists:
        raise ServeError(f"The service {service.name} is being started already.") from None


def _start(local: LocalRay, service: InferenceService, *, verbose: bool) -> None:
    """Go through the phases of a start, and say where the service is."""
    with Progress(verbose=verbose) as progress:
        with progress.phase("Starting Ray"), connect(local.record) as ray:
            local.wait_until_up(ray)
        with progress.phase(f"Deploying {service.name}") as report:
            deploy(local.record, service, check=local.check_alive, report=report)
        seconds = progress.seconds
    _show_ready(local.record, service, seconds)


def _stay(local: LocalRay) -> None:
    """Wait until the service ends: by Ctrl-C, by `tandem stop`, or by itself."""
    out.print("[dim]Ctrl-C ends it.[/dim]")
    if local.wait() != EXIT_TOLD:
        local.check_alive()
        raise typer.Exit(EXIT_FAILED)
    out.print("Stopped.")


def _show_ready(record: Record, service: InferenceService, seconds: float) -> None:
    question = '[{"role": "user", "content": "12+30=?"}]'
    body = f'{{"model": "{service.model_name}", "messages": {question}}}'
    out.print(f"\n[bold]{record.name}[/bold] serves at {record.url} ({seconds:.1f} s)\n")
    out.print("  tandem chat")
    out.print(f"  curl {record.url}/v1/chat/completions \\\n    -d '{body}'\n", markup=False)


def _runs_already(record: Record) -> ServeError:
    return ServeError(
        f"The service {record.name} runs already, at {record.url}; change it with tandem apply, "
        f"or end it with tandem stop {record.name}."
    )
