"""`tandem serve`: run a service on this machine."""

from pathlib import Path

import typer

from tandem_serve.api.spec import InferenceService
from tandem_serve.commands.apply import apply_to
from tandem_serve.commands.common import (
    EXIT_FAILED,
    Progress,
    exit_on_signals,
    out,
    read_manifest,
    report_errors,
)
from tandem_serve.commands.local_checks import check_packages, check_runs_locally
from tandem_serve.errors import ServeError
from tandem_serve.local.ray_head import ListenAddress, LocalRay, local_ray
from tandem_serve.local.records import Record, RecordExists, find_record
from tandem_serve.local.services import connect, deploy
from tandem_serve.local.supervisor import EXIT_STOPPED


def serve(
    file: Path, *, host: str, port: int, api_keys: Path | None, detach: bool, verbose: bool
) -> None:
    """Run the service of `file` here; detached, apply it to one that runs already.

    `api_keys` is a folder of files with an API key each.
    """
    with exit_on_signals(), report_errors(verbose=verbose):
        service = read_manifest(file)
        address = ListenAddress(host=host, port=port, api_keys=_folder_of_keys(api_keys))
        running = find_record(service.name)
        if running is not None and not detach:
            raise _runs_already(running)
        check_runs_locally(service, api_keys=(running or address).api_keys)
        if running is None:
            check_packages()
            _run(service, address, detach=detach, verbose=verbose)
        elif address.api_keys in {None, running.api_keys}:
            apply_to(running, service, verbose=verbose)
        else:
            raise _has_other_keys(running)


def _folder_of_keys(folder: Path | None) -> str | None:
    if folder is None:
        return None
    if not folder.is_dir():
        raise ServeError(
            f"--api-keys {folder} is not a folder; name one of files with an API key each."
        )
    return str(folder.resolve())


def _run(service: InferenceService, address: ListenAddress, *, detach: bool, verbose: bool) -> None:
    try:
        with local_ray(service, address, echo=verbose) as local:
            _start(local, service, verbose=verbose)
            if detach:
                local.detach()
            else:
                _stay(local)
    except RecordExists:
        raise ServeError(
            f"The service {service.name} is already starting; wait for it, or stop it with "
            f"tandem stop {service.name}."
        ) from None


def _start(local: LocalRay, service: InferenceService, *, verbose: bool) -> None:
    """Go through the phases of a start, and print the service's URL."""
    with Progress(verbose=verbose) as progress:
        with progress.phase("Starting Ray"), connect(local.record) as ray:
            local.wait_until_up(ray)
        with progress.phase(f"Deploying {service.name}") as report:
            deploy(local.record, service, check=local.check_alive, report=report)
        seconds = progress.seconds
    _show_ready(local.record, service, seconds)


def _stay(local: LocalRay) -> None:
    """Wait until the service ends: by Ctrl-C, by `tandem stop`, or by itself."""
    out.print("[dim]Press Ctrl-C to stop.[/dim]")
    if local.wait() != EXIT_STOPPED:
        local.check_alive()
        raise typer.Exit(EXIT_FAILED)
    out.print("Stopped.")


def _show_ready(record: Record, service: InferenceService, seconds: float) -> None:
    question = '[{"role": "user", "content": "12+30=?"}]'
    body = f'{{"model": "{service.model_name}", "messages": {question}}}'
    out.print(f"\n[bold]{record.name}[/bold] serves at {record.url} ({seconds:.1f} s)\n")
    chat, header = "tandem chat", ""
    if record.api_keys:
        chat, header = f"{chat} --api-key KEY", " -H 'Authorization: Bearer KEY'"
    out.print(f"  {chat}")
    url = f"{record.url}/v1/chat/completions"
    out.print(f"  curl {url}{header} \\\n    -d '{body}'\n", markup=False)


def _runs_already(record: Record) -> ServeError:
    return ServeError(
        f"The service {record.name} is already running at {record.url}; update it with tandem "
        f"apply, or stop it with tandem stop {record.name}."
    )


def _has_other_keys(record: Record) -> ServeError:
    return ServeError(
        f"The service {record.name} is already running with other API keys; put the keys into "
        f"{record.api_keys}, or stop it with tandem stop {record.name} and start it again."
        if record.api_keys
        else f"The service {record.name} is already running without API keys; stop it with tandem "
        f"stop {record.name} and start it again."
    )
