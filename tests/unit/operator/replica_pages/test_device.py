"""The device of replicas out of their own metrics, whatever is in them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_operator.commands.replica_lines import device_line
from tandem_operator.crd.status_schema import status_schema
from tandem_operator.replica_pages.device import device_document, is_due, read_device

NOW = "2026-11-28T10:00:00Z"
CARD = DeviceFacts(
    device="npu",
    name="Ascend910B3",
    software="driver 25.0.rc1, CANN 8.2.RC1, torch_npu 2.13.0",
    memory_bytes=60 << 30,
)
FIELDS = {
    "type": "npu",
    "name": "Ascend910B3",
    "software": "driver 25.0.rc1, CANN 8.2.RC1, torch_npu 2.13.0",
    "memoryBytes": 60 << 30,
}


def page(facts: DeviceFacts | None = CARD) -> bytes:
    """The page of a replica, by the engine's own code."""
    return EngineMetrics("Tiny-1.5_a", aliases=("vllm", "mindie"), device=facts).text()


def test_the_device_is_the_one_that_the_engine_shows() -> None:
    assert read_device(page()) == FIELDS
    assert read_device(page(None)) is None


def test_a_name_with_quotes_and_lines_stays_one_label() -> None:
    odd = read_device(page(replace(CARD, name='a "card"\\\nof two lines')))

    assert odd
    assert odd["name"] == "a 'card'/ of two lines"


@pytest.mark.parametrize("size", [b"-1", b"1e3", b"", b"\xb2", b"9" * 19])
def test_a_memory_that_is_no_size_is_not_read(size: bytes) -> None:
    assert read_device(page().replace(str(60 << 30).encode(), size)) is None


@given(st.binary(max_size=2000), st.integers(0, 4000))
def test_any_page_is_read_or_is_none(noise: bytes, at: int) -> None:
    text = page()
    read_device(noise)
    read_device(text[:at] + noise + text[at:])
    read_device(text[:at])


def test_of_several_replicas_the_smallest_card_is_told() -> None:
    small = {**FIELDS, "memoryBytes": 28 << 30, "name": "Ascend910B4"}

    document = device_document([FIELDS, small], NOW)

    assert document == {**small, "replicas": 2, "measuredAt": NOW}
    assert device_document([], NOW) is None
    assert document.keys() == status_schema()["properties"]["device"]["properties"].keys()


def test_it_is_written_where_it_names_another_device() -> None:
    before = device_document([FIELDS], NOW)
    assert before

    assert is_due(None, before)
    assert not is_due(
        before, {**before, "memoryBytes": (60 << 30) - (1 << 29), "measuredAt": "later"}
    )
    assert is_due(before, {**before, "memoryBytes": 30 << 30})
    assert is_due(before, {**before, "software": "CANN 9"})


def test_an_explanation_names_the_device() -> None:
    status = {"device": {**FIELDS, "replicas": 1, "measuredAt": NOW}}

    assert device_line({"status": status}, NOW) == (
        "Ascend910B3 (npu), 60.0 GiB for a rank, driver 25.0.rc1, CANN 8.2.RC1, torch_npu 2.13.0; "
        "read 0s ago."
    )
    assert device_line({"status": {}}, NOW) is None
