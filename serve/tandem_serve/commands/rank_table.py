"""Ranks and draft model, checked against the checkpoint; and what each rank will hold."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from rich.table import Table

from tandem_engine.api.config import EngineConfig
from tandem_engine.api.errors import CheckpointError, ConfigError
from tandem_serve.api.document import AppArgs, LiveSettings, ServeOptions
from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.source import Source
from tandem_serve.api.spec import InferenceService
from tandem_serve.commands.common import err, print_note
from tandem_serve.commands.tables import print_table

if TYPE_CHECKING:
    from tandem_engine.preview import StageMemory

_GIB: Final = 2**30
_MIB: Final = 2**20


def check_checkpoint(service: InferenceService) -> None:
    """Refuse a checkpoint that no replica would load, before one is started for it.

    Raises:
        ManifestError: its architecture is not known, or a file is missing or garbled.
    """
    _check(
        service,
        lambda preview: preview.check_checkpoint,
        otherwise="the checkpoint was not checked",
    )


def check_ranks(service: InferenceService) -> None:
    """Refuse ranks that the model, where it is on this machine, cannot be cut into.

    The same with micro-batches that are not tested with it.

    Raises:
        ManifestError: it cannot; the text says what would do.
    """
    if service.spec.engine.parallelism.ranks == 1 or not _is_here(service.spec.model):
        return
    _check(
        service,
        lambda preview: preview.check_ranks,
        otherwise="the ranks were not checked against the checkpoint",
    )


def check_cards(service: InferenceService) -> None:
    """Refuse device npu where its package, CANN, the driver or a card is missing on this machine.

    Else Ray would wait for the card, or each replica would say it in its log and end.

    Raises:
        ManifestError: one is; the text says which, and what would do.
    """
    if service.spec.device == "cpu":
        return
    from tandem_engine import preview  # noqa: PLC0415  # torch is heavy

    try:
        num_cards = preview.usable_cards()
    except ConfigError as error:
        raise ManifestError([f"spec.engine.device: {error}"]) from None
    cards = service.spec.resources.npu
    if (needed := service.replicas * cards) > num_cards:
        problem = (
            f"spec.resources.npu: {service.replicas} replicas of {cards} need {needed} cards, and "
            f"this machine has {num_cards} that may be used; lower scaling.replicas"
        )
        raise ManifestError([problem])


def check_device(service: InferenceService) -> None:
    """Refuse a model, where it is on this machine, whose sizes the device's operators do not take.

    Raises:
        ManifestError: it is one; the text says what would do.
    """
    if service.spec.device == "cpu" or not _is_here(service.spec.model):
        return
    _check(
        service,
        lambda preview: preview.check_device,
        otherwise="the checkpoint was not checked against the device",
    )


def check_draft(service: InferenceService) -> None:
    """Refuse a draft model, where it is on this machine, that guesses no tokens of the model.

    Or whose weights the memory does not hold beside the model's.

    Raises:
        ManifestError: it is one; the text says what would do.
    """
    draft = service.spec.engine.speculation.draft
    if draft is None or not _is_here(service.spec.model) or not _is_here(draft):
        return
    _check(
        service,
        lambda preview: preview.check_draft_model,
        otherwise="the draft model was not checked against the model",
    )


def _check(
    service: InferenceService,
    choose: Callable[[ModuleType], Callable[[EngineConfig], None]],
    *,
    otherwise: str,
) -> None:
    """Call a check of `tandem_engine.preview`; where it is not installed, say what was not done."""
    try:
        # torch is heavy, and the operator's image has none.
        from tandem_engine import preview  # noqa: PLC0415
    except ImportError as error:
        print_note(f"{otherwise}: {error}")
        return
    try:
        choose(preview)(_engine_config(service))
    except ConfigError as error:
        raise ManifestError([f"spec.engine.{error}"]) from None
    except CheckpointError as error:
        raise ManifestError([f"spec.model.source: {error}"]) from None


def show_ranks(service: InferenceService) -> None:
    """Print the memory of each rank, once they are checked, to standard error.

    That of a card is not in the manifest.
    """
    if service.spec.engine.parallelism.ranks == 1 or service.spec.device != "cpu":
        return
    if not _is_here(service.spec.model):
        settings = "tp and pp"
        if service.spec.engine.stream_options.micro_batch:
            settings = "tp, pp and microBatch"
        print_note(
            f"the checkpoint {service.spec.model.source} is not on this machine: {settings} were "
            "not checked against it, and a rank's memory cannot be told"
        )
        return
    try:
        from tandem_engine import preview  # noqa: PLC0415  # check_ranks tells of it
    except ImportError:
        return
    try:
        memories = preview.preview_ranks(_engine_config(service))
    except (ConfigError, CheckpointError) as error:
        print_note(f"by an estimate, the ranks will not start: {error}")
        return
    err.print("Memory of each rank, about; a replica measures it when it starts:")
    print_table(_table(memories), err)


def note_slow_sizes(service: InferenceService) -> None:
    """Print a note where the shares of ranks have sizes that the CPU's kernels do not compute.

    To be called once `check_ranks` has refused nothing.
    """
    if service.spec.device != "cpu":
        return
    if service.spec.engine.parallelism.ranks == 1 or not _is_here(service.spec.model):
        return
    try:
        from tandem_engine import preview  # noqa: PLC0415  # check_ranks tells of it
    except ImportError:
        return
    try:
        problem = preview.native_problem(_engine_config(service))
    except (ConfigError, CheckpointError):
        return  # the replica refuses it
    if problem:
        print_note(problem)


def _is_here(source: Source) -> bool:
    return source.claim is None and (Path(source.path) / "config.json").is_file()


def _engine_config(service: InferenceService) -> EngineConfig:
    args = AppArgs.of(service, ServeOptions())
    return args.engine.engine_config(LiveSettings.of(service))


def _table(memories: Sequence["StageMemory"]) -> Table:
    columns = ("ranks", "layers", "memory", "weights", "largest step", "KV cache")
    table = Table(*columns, box=None, pad_edge=False)
    for memory in memories:
        table.add_row(
            _in_words(memory.ranks),
            _span(memory.layers[0], memory.layers[-1]),
            _size(memory.total),
            _size(memory.weights),
            f"{_size(memory.step)} ({memory.step_tokens} tokens)",
            f"{_size(memory.kv_cache)} ({memory.kv_tokens} tokens)",
        )
    return table


def _in_words(ranks: Sequence[int]) -> str:
    """Ranks in runs: 0-1, 4-5."""
    starts = [rank for rank in ranks if rank - 1 not in ranks]
    ends = [rank for rank in ranks if rank + 1 not in ranks]
    return ", ".join(map(_span, starts, ends))


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _size(num_bytes: int) -> str:
    in_gib = num_bytes >= _GIB
    return f"{num_bytes / (_GIB if in_gib else _MIB):.1f} {'GiB' if in_gib else 'MiB'}"
