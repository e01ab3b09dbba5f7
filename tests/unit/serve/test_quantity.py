"""Quantities, as Kubernetes spells them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_serve.api.quantity import format_bytes, format_cpu, parse_cpu, parse_quantity


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "1"),
        (1000, "1k"),
        (1024, "1Ki"),
        (1536 * 2**20, "1536Mi"),
        (2**30, "1Gi"),
        (2_500_000_000, "2500M"),
        (1_024_000, "1000Ki"),
        (3_000_000_001, "3000000001"),
    ],
)
def test_bytes_are_spelled_as_kubernetes_would(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(size=st.integers(1, 2**70))
def test_a_size_reads_back(size: int) -> None:
    assert parse_quantity(format_bytes(size)) == size


@given(thousandths=st.integers(1, 10**6))
def test_cpus_read_back(thousandths: int) -> None:
    assert parse_cpu(format_cpu(thousandths)) == thousandths


@pytest.mark.parametrize(
    ("one", "other"), [("1024Mi", "1Gi"), ("0.5", "500m"), ("1e3", "1k"), ("1000", "1k")]
)
def test_two_spellings_of_one_amount(one: str, other: str) -> None:
    assert parse_quantity(one) == parse_quantity(other)


@pytest.mark.parametrize("text", ["", "much", "1GiB", "1 Gi", "-"])
def test_a_text_that_is_no_quantity_is_refused(text: str) -> None:
    assert parse_quantity(text) is None


@pytest.mark.parametrize("text", ["much", "0", "-1", "100u"])
def test_a_text_that_is_no_amount_of_cpu_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount of CPU; write one such as 500m"):
        parse_cpu(text)
