"""The guide on ranks names the fields of the status that there are."""

from tandem_operator.crd.status_schema import status_schema
from tests.unit.docs.pages import ROOT, code_spans, rows

PAGE = ROOT / "docs" / "guides" / "ranks.md"


def test_every_field_of_the_status_is_explained_and_no_other() -> None:
    told = {
        name
        for header, cells in rows(PAGE)
        if "status.ranks" in header[0]
        for name in code_spans(cells[0])
    }
    fields = status_schema()["properties"]["ranks"]["properties"]
    of_rank = fields["memory"]["items"]["properties"]

    assert told == {*fields} - {"memory"} | {f"memory[].{name}" for name in of_rank}
