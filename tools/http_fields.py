"""`python -m tools.http_fields`: writes the table of request fields into docs/reference/http.md."""

import json
from pathlib import Path
from typing import Final

from tandem_serve.http.openai.protocol import ChatRequest, CompletionRequest, RequestModel

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "http.md"
BEGIN: Final = "| field | in chat | in completions |\n"
_END: Final = "\n\n"
_MODELS: Final[tuple[type[RequestModel], ...]] = (ChatRequest, CompletionRequest)


def table() -> str:
    """Return the table: what becomes of each field at each endpoint."""
    names = sorted(set().union(*(model.known() for model in _MODELS)))
    rows = [
        f"| `{name}` | {' | '.join(_fate(model, name) for model in _MODELS)} |" for name in names
    ]
    return "\n".join([BEGIN.rstrip(), "|---|---|---|", *rows])


def written(page: str) -> str:
    """Return the text of the page with the table as the code has it."""
    start = page.index(BEGIN)
    return page[:start] + table() + page[page.index(_END, start) :]


def _fate(model: type[RequestModel], name: str) -> str:
    if name in model.model_fields:
        return "works"
    if name in model.ignored:
        return "no effect"
    if name not in model.unsupported:
        return "unknown"
    unsupported = model.unsupported[name]
    harmless = ", ".join(f"`{json.dumps(value)}`" for value in unsupported.harmless)
    but = f" unless {harmless}" if harmless else ""
    return f"refused{but}: {unsupported.reason}; {unsupported.way_out}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
