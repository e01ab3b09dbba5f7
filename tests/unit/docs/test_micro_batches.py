"""The guide on micro-batches names the fields of the status that there are, and the models."""

from tandem_engine.api.micro_batches import MODEL_TYPES
from tandem_engine.microbatch.cut import RefusalReason
from tandem_operator.crd.status_schema import status_schema
from tests.unit.docs.pages import ROOT, code_spans, prose, rows

PAGE = ROOT / "docs" / "guides" / "micro-batches.md"


def test_every_field_of_the_status_is_explained_and_no_other() -> None:
    told = {
        name
        for header, cells in rows(PAGE)
        if "status.microBatch" in header[0]
        for name in code_spans(cells[0])
    }

    assert told == {*status_schema()["properties"]["microBatch"]["properties"]}


def test_the_page_names_the_types_of_models() -> None:
    text = "\n".join(prose(PAGE))

    assert all(f"`{name}`" in text for name in MODEL_TYPES)


def test_every_reason_for_a_whole_step_is_explained_and_no_other() -> None:
    told = {
        name
        for header, cells in rows(PAGE)
        if header[0] == "refusal"
        for name in code_spans(cells[0])
    }

    assert told == {*RefusalReason}
