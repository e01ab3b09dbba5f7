"""Pages begin with what the reader can do after them, and every link leads somewhere."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.unit.docs.pages import ROOT, anchors, links, markdown_files, name_of, prose, rows

PAGES = markdown_files()
OPENINGS = ("After this page you ", "From this page you ")
WITHOUT_OPENING = ("README.md", "CHANGELOG.md")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_and_anchor_resolves(page: Path) -> None:
    broken = [target for target in links(page) if not resolves(page, target)]

    assert not broken


def resolves(page: Path, target: str) -> bool:
    """Return True for a file, folder or heading that is there, and for other machines' pages."""
    parts = urlsplit(target)
    if parts.scheme:
        return True
    path = (page.parent / parts.path).resolve() if parts.path else page
    if not path.exists() or not path.is_relative_to(ROOT):
        return False
    return not parts.fragment or parts.fragment in anchors(path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_opens_with_what_its_reader_can_do_after_it(page: Path) -> None:
    if name_of(page) in WITHOUT_OPENING:
        return
    title, first, *_ = filter(str.strip, prose(page))

    assert title.startswith("# ")
    assert first.startswith(OPENINGS)


@pytest.mark.parametrize("page", [page for page in PAGES if "docs" in page.parts], ids=name_of)
def test_every_page_of_the_docs_can_be_reached_from_another_one(page: Path) -> None:
    reached = {
        (other.parent / urlsplit(target).path).resolve()
        for other in PAGES
        if other != page
        for target in links(other)
        if not urlsplit(target).scheme and urlsplit(target).path
    }

    assert page in reached


def test_paths_of_pages_in_the_code_lead_somewhere() -> None:
    """Messages, docstrings and comments name pages by their path in the repository."""
    sources = [
        path
        for folder in ("engine", "operator", "serve", "benchmarks", "tools", "examples", "charts")
        for suffix in ("py", "yaml", "txt", "h", "cpp", "json")
        for path in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    named = [(path, page) for path in sources for page in pages_named_in(path)]

    assert named
    assert not [f"{path}: {page}" for path, page in named if not (ROOT / page).is_file()]


def pages_named_in(path: Path) -> list[str]:
    """Return the docs/….md in a file, wherever they stand in it."""
    words = path.read_text(encoding="utf-8", errors="replace").replace("https://", " ").split()
    return [
        word[word.index("docs/") : word.index(".md") + 3]
        for word in words
        if "docs/" in word and ".md" in word
    ]


def test_the_page_of_decisions_counts_them() -> None:
    folder = ROOT / "docs" / "design" / "decisions"
    counted = {
        target: int(cells[1])
        for header, cells in rows(folder / "README.md")
        if header[0] == "page"
        for target in re.findall(r"\(([^)]*)\)", cells[0])
    }
    pages = [page for page in PAGES if page.parent == folder and page.name != "README.md"]

    headings = {page.name: sum(line.startswith("## ") for line in prose(page)) for page in pages}
    assert counted == headings
