"""Measures all sides on all cases, and shows what they give."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from shutil import copytree
from statistics import mean, median
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.peers.models import cache_folder
from benchmarks.peers.shapes import find_shape
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.result import write_figures
from benchmarks.speculation.measuring_model import make_measuring_model
from benchmarks.speculation.peer_sides import PeerSettings, PeerSide, peer_sides
from benchmarks.speculation.questions import banned_tokens, requests
from benchmarks.speculation.sides import METHODS, OFF, Models, Side, take_turns
from tandem_engine.api.config import Quantization
from tandem_engine.api.request import Request
from tandem_engine.device.registry import open_device
from tandem_engine.model.load_decoder import load_decoder

TINY: Final = Path(__file__).parents[2] / "examples" / "tandem-tiny"
_MAX_POSITIONS: Final = 1024
_PRICE: Final = 0.003
"""tandem-tiny's weights as a share of M's."""
GOALS: Final = {("draft", 1): 2.5, ("draft", 4): 1.6}
"""Method and rows → tokens a second, off = 1."""
LEAST: Final = 0.98
"""Of auto, with any number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A run."""

    model: str = "M"
    rows: tuple[int, ...] = (1, 4, 16, 64)
    workloads: tuple[str, ...] = ("copying", "questions")
    methods: tuple[str, ...] = METHODS
    rounds: int = 5
    output_len: int = 64
    temperature: float = 0.0
    max_draft_tokens: int = 4
    quantization: Quantization = "auto"
    models: Path | None = None
    num_threads: int = 2
    peers: Mapping[str, Path] = field(default_factory=dict)
    """Engine → interpreter; they answer where there is one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One side on one case."""

    workload: str
    num_rows: int
    method: str
    tokens_per_s: float
    """Median over the rounds."""
    ratio: float
    """Median of the rounds' ratios to the same engine's off."""
    ratios: list[float] = field(default_factory=list)
    accepted: float | None
    """Share of drafts that were right."""
    same_tokens: float
    """Share of answers that are those of Tandem's off, token for token."""


def run_all(settings: Settings, out: Path | None) -> list[Figures]:
    """Measure, print, and write after each case, so that what was measured is kept."""
    console, figures = Console(), list[Figures]()
    folder = _make_model(settings, console)
    models = _load(settings, folder, console)
    with ExitStack() as stack:
        peers = list[PeerSide]()
        if settings.peers and 1 in settings.rows:
            console.print("Starting the other engines; vLLM compiles for some minutes.")
            peers = stack.enter_context(
                peer_sides(
                    settings.peers,
                    PeerSettings(
                        large=folder,
                        # Conversions are written beside it, which is no place in the repository.
                        draft=copytree(TINY, folder.with_name(TINY.name), dirs_exist_ok=True),
                        num_threads=settings.num_threads,
                        num_drafts=settings.max_draft_tokens,
                        banned=banned_tokens(TINY) if settings.output_len else (),
                        log=folder / "peers.log",
                    ),
                )
            )
        for workload in settings.workloads:
            for num_rows in settings.rows:
                own = _own_sides(settings, models, num_rows)
                sides: list[Side | PeerSide] = [*own, *(peers if num_rows == 1 else ())]
                of_case = list(_measure(settings, sides, workload, num_rows, console))
                console.print(_table(of_case))
                figures += of_case
                _write(settings, figures, out)
    if out is not None:
        console.print(f"Figures: {out}, {out.with_suffix('.png')}")
    return figures


def _make_model(settings: Settings, console: Console) -> Path:
    shape = find_shape(settings.model)
    folder = (settings.models or cache_folder()) / f"measuring-{shape.name}"
    console.print(f"Model: tandem-tiny's function in the shape {shape.name}, {folder}")
    try:
        make_measuring_model(TINY, shape, folder)
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"The model cannot be made: {error}") from None
    return folder


def _load(settings: Settings, folder: Path, console: Console) -> Models:
    runtime = open_device("cpu")
    console.print(runtime.set_num_threads(settings.num_threads))
    decoder = load_decoder(
        folder, quantization=settings.quantization, runtime=runtime, max_positions=_MAX_POSITIONS
    )
    draft = load_decoder(TINY, runtime=runtime, max_positions=_MAX_POSITIONS)
    return Models(decoder=decoder, draft=draft, runtime=runtime, token_price=_PRICE)


def _own_sides(settings: Settings, models: Models, num_rows: int) -> list[Side]:
    return [
        Side(method, models, num_rows=num_rows, max_draft_tokens=settings.max_draft_tokens)
        for method in settings.methods
    ]


def _measure(
    settings: Settings,
    sides: Sequence[Side | PeerSide],
    workload: str,
    num_rows: int,
    console: Console,
) -> Iterator[Figures]:
    # Answers that end are short: one row answers several questions a turn, one after another.
    num_requests = num_rows if settings.output_len else max(8, num_rows)
    asked = requests(
        TINY, workload, output_len=settings.output_len, temperature=settings.temperature
    )
    batches = iter(lambda: list(islice(asked, num_requests)), [])
    speeds: dict[str, list[float]] = {side.method: [] for side in sides}
    same: dict[str, list[bool]] = {side.method: [] for side in sides}
    answers: dict[str, dict[str, tuple[int, ...]]] = {}
    # The first round warms up, and lets auto learn.
    for number, side, turn in take_turns(sides, _batches(batches), settings.rounds + 1):
        answers[side.method] = turn.tokens
        if number:
            speeds[side.method].append(turn.tokens_per_s)
        if len(answers) == len(sides):
            right = answers[sides[0].method]
            for method, tokens in answers.items():
                same[method] += [tokens[name] == right[name] for name in right]
            answers.clear()
            console.print(f"{workload}, {num_rows} rows: round {number} of {settings.rounds}")
    for side in sides:
        ratios = [
            mine / off if off else 0.0
            for mine, off in zip(speeds[side.method], speeds[side.base], strict=True)
        ]
        yield Figures(
            workload=workload,
            num_rows=num_rows,
            method=side.method,
            tokens_per_s=median(speeds[side.method]),
            ratio=median(ratios),
            ratios=ratios,
            accepted=side.accepted_share(),
            same_tokens=mean(same[side.method]),
        )
        side.close()


def _batches(batches: Iterator[list[Request]]) -> Iterator[Sequence[Request]]:
    yield from batches
    raise BenchmarkError("There are no more questions; lower --rounds or --rows.")


def _table(figures: Sequence[Figures]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("workload", "rows", "method", "tokens/s", "off = 1", "goal", "right", "as off"):
        table.add_column(column, justify="left" if column in {"workload", "method"} else "right")
    for row in figures:
        goal = LEAST if row.method == "auto" else GOALS.get((row.method, row.num_rows))
        table.add_row(
            row.workload,
            str(row.num_rows),
            row.method,
            f"{row.tokens_per_s:.1f}",
            f"{row.ratio:.2f}",
            "" if goal is None else f"{goal:g}",
            "" if row.accepted is None else f"{100 * row.accepted:.0f} %",
            f"{100 * row.same_tokens:.0f} %",
        )
    return table


def _write(settings: Settings, figures: Sequence[Figures], out: Path | None) -> None:
    if out is None:
        return
    from benchmarks.speculation.plot import save_plot  # noqa: PLC0415  # matplotlib is slow

    write_figures(
        out,
        settings=asdict(settings) | {"models": None, "peers": sorted(settings.peers)},
        figures=[asdict(row) for row in figures],
    )
    save_plot(figures, out.with_suffix(".png"), off=OFF)
