"""The Markdown files of the repository: links, headings, tables and code blocks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
_FOLDERS: Final = ("docs", "examples", "tools", "charts", "benchmarks", "containers", "tests")
CONSOLE_LANGUAGES: Final = ("console", "sh", "bash")
_FENCE: Final = re.compile(r"^ {0,3}```(\w*)\s*$")
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of code."""

    page: Path
    line: int
    """Number of its first line."""
    language: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def text(self) -> str:
        """Its lines as one text."""
        return "\n".join(self.lines)


def markdown_files() -> list[Path]:
    """Return all Markdown files, without those of tools and caches."""
    below = (path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.md"))
    return sorted([*ROOT.glob("*.md"), *below])


def name_of(page: Path) -> str:
    """Return the path of a page in the repository, for the ids of tests."""
    return str(page.relative_to(ROOT))


def code_blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, without their indentation."""
    return [block for block in _parts(page) if isinstance(block, Block)]


def all_blocks(*languages: str) -> list[Block]:
    """Return the fenced blocks of all pages; with languages, those of one of them."""
    blocks = [block for page in markdown_files() for block in code_blocks(page)]
    return [block for block in blocks if not languages or block.language in languages]


def console_commands(block: Block) -> list[str]:
    """Return the commands of a console block, each in one line, without prompts and remarks."""
    return [command for command, _ in _transcript(block)]


def console_output(block: Block) -> list[str]:
    """Return what the commands of a console block printed; only blocks with prompts show it."""
    return [line for _, lines in _transcript(block) for line in lines]


def prose(page: Path) -> list[str]:
    """Return the lines of a page outside of fenced blocks."""
    return [line for line in _parts(page) if isinstance(line, str)]


@cache
def links(page: Path) -> tuple[str, ...]:
    """Return the targets of the links and pictures of a page."""
    return tuple(target for line in prose(page) for target in _LINK.findall(_CODE.sub("", line)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    found: dict[str, int] = {}
    for line in prose(page):
        if not line.startswith("#"):
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip())
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = found.get(anchor, 0)
        found[anchor] = count + 1
        if count:
            found[f"{anchor}-{count}"] = 1
    return set(found)


def rows(page: Path) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield header and cells of each row of each table of a page."""
    header: tuple[str, ...] = ()
    for line in map(str.strip, prose(page)):
        if not line.startswith("|"):
            header = ()
        elif not header:
            header = _cells(line)
        elif not set(line) <= set("|-: "):
            yield header, _cells(line)


def code_spans(text: str) -> list[str]:
    """Return what stands between single backticks."""
    return [span.strip("`") for span in _CODE.findall(text)]


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip("|").split("|"))


def _transcript(block: Block) -> list[tuple[str, list[str]]]:
    """Return each command of a console block with the lines of its output."""
    has_prompts = any(line.startswith("$ ") for line in block.lines)
    found: list[tuple[str, list[str]]] = []
    is_open = False
    for line in block.lines:
        if is_open:
            command = f"{found.pop()[0]} {line.strip()}"
        elif line.startswith("$ ") or (line.strip() and not has_prompts):
            command = line.removeprefix("$ ").strip()
        else:
            if found:
                found[-1][1].append(line)
            continue
        is_open = command.endswith("\\") or _has_open_quote(command)
        found.append((command.removesuffix("\\").rstrip() if is_open else _bare(command), []))
    return found


def _bare(command: str) -> str:
    """Return a command without the remark behind it."""
    return re.sub(r"\s#\s.*$", "", command).strip()


def _has_open_quote(command: str) -> bool:
    try:
        shlex.split(_bare(command))
    except ValueError:
        return True
    return False


@cache
def _parts(page: Path) -> tuple[Block | str, ...]:
    return tuple(_read_parts(page))


def _read_parts(page: Path) -> Iterator[Block | str]:
    language, lines, start = "", list[str](), 0
    is_open = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence and is_open:
            yield Block(page, start, language, tuple(_dedented(lines)))
            is_open = False
        elif fence:
            language, lines, start, is_open = fence[1], [], number + 1, True
        elif is_open:
            lines.append(line)
        else:
            yield line
    assert not is_open, f"{page}: the block that begins at line {start} does not end"


def _dedented(lines: list[str]) -> list[str]:
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[depth:] for line in lines]
