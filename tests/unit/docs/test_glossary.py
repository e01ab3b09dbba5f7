"""The glossary says each term once, and no term is a retired word."""

from collections import Counter

from tests.unit.docs.pages import ROOT, rows

PAGE = ROOT / "docs" / "design" / "glossary.md"


def test_every_term_stands_once_with_its_meaning() -> None:
    terms = [cells for header, cells in rows(PAGE) if header[0] == "term"]
    count = Counter(cells[0] for cells in terms)

    assert len(terms) > 60
    assert not [term for term, times in count.items() if times > 1]
    assert all(meaning for _, meaning, _ in terms)


def test_every_retired_word_stands_once_with_its_successor() -> None:
    retired = [cells for header, cells in rows(PAGE) if header[0] == "retired"]
    terms = {cells[0] for header, cells in rows(PAGE) if header[0] == "term"}

    assert len({old for old, _, _ in retired}) == len(retired) > 40
    assert all(new and old != new for old, _, new in retired)
    assert {kind for _, kind, _ in retired} == {"name", "phrase"}
    assert not terms & {old.strip("`") for old, _, _ in retired}
