"""Growth as a soak defines it; the load itself runs against a real service by hand."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.soak.plot import save_plot
from benchmarks.soak.series import QUANTITIES, Sample, growth_of
from benchmarks.soak.traffic import failures

COUNT = 40


def samples(**slopes: float) -> list[Sample]:
    """A figure of 100 each, and what it gains from the first sample to the last."""
    return [
        Sample(float(at), {name: 100.0 + slopes.get(name, 0.0) * at / COUNT for name in QUANTITIES})
        for at in range(COUNT)
    ]


def flat(**slopes: float) -> dict[str, bool]:
    return {growth.name: growth.is_flat for growth in growth_of(samples(**slopes))}


def test_what_does_not_grow_is_flat() -> None:
    assert all(flat().values())


@pytest.mark.parametrize("name", QUANTITIES)
def test_what_grows_steadily_is_found(name: str) -> None:
    found = flat(**{name: 200.0})
    assert not found.pop(name)
    assert all(found.values())


def test_what_shrinks_is_flat() -> None:
    assert all(flat(threads=-50.0).values())


def test_filling_caches_in_the_first_quarter_are_no_growth() -> None:
    rising = samples()
    rising[0] = Sample(0.0, dict.fromkeys(QUANTITIES, 1.0))
    assert all(growth.is_flat for growth in growth_of(rising))


def test_few_samples_say_nothing() -> None:
    with pytest.raises(ValueError, match="7 samples are too few"):
        growth_of(samples()[:7])


def test_only_unexpected_ends_are_failures() -> None:
    ends = Counter({"streamed: expected": 5, "whole: unexpected": 1, "whole: ReadError": 2})
    assert failures(ends) == ["whole: ReadError (2)", "whole: unexpected (1)"]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "soak.png"
    save_plot(samples(), [3.0, 9.0], file, title="test")
    assert file.read_bytes().startswith(b"\x89PNG")
