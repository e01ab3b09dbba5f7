"""All dashboards, and the files that they are written into."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tools.dashboards import engine, fleet, operator_board, service
from tools.dashboards.parts import Board, build

FOLDER: Final = Path(__file__).parents[2] / "charts/tandem/dashboards"
BOARDS: Final[Mapping[str, Board]] = {
    "fleet": fleet.BOARD,
    "service": service.BOARD,
    "engine": engine.BOARD,
    "operator": operator_board.BOARD,
}
"""The dashboards by the names of their files."""


def text_of(board: Board) -> str:
    """Return a dashboard as JSON."""
    return json.dumps(build(board).build(), cls=JSONEncoder, sort_keys=True, indent=1) + "\n"


def file_of(name: str) -> Path:
    """Return the file of a dashboard."""
    return FOLDER / f"{name}.json"


def write() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, board in BOARDS.items():
        file_of(name).write_text(text_of(board), encoding="utf-8")
