"""`tandem doctor`: it finds what is wrong, and nothing where nothing is."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.runtime import KERNELS_VARIABLE
from tandem_engine.device.graphs import Graphs
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.doctor import Finding, examine, examine_device
from tests.npu.operators import operators_on_cpu
from tests.npu.recorded_graphs import RecordedGraph
from tests.npu.runtime import RecordedKernels
from tests.unit.engine.native import native_kernels

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    with operators_on_cpu():
        yield


class Wrong(ReferenceKernels):
    """Kernels of which three are wrong, each in its own way."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return super().rms_norm(x, weight, eps) * 1.02

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        raise RuntimeError(f"EZ9999: no operator takes {tuple(gate_up.shape)}\nmore of CANN")

    def paged_attention(self, *arguments: Any, **others: Any) -> Tensor:
        attended = super().paged_attention(*arguments, **others)
        attended[0, 0] = torch.nan
        return attended


def wrong_ones(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings if not finding.is_right}


def test_the_kernels_of_this_cpu_are_right() -> None:
    assert wrong_ones(examine(native_kernels(), CPU)) == {}


def test_the_kernels_of_an_npu_are_right_over_operators_on_the_cpu() -> None:
    findings = list(examine(RecordedKernels(), CPU))

    assert wrong_ones(iter(findings)) == {}
    assert [each.name for each in findings[-2:]] == [
        "norm and linear, replayed",
        "rotary embedding, KV cache, replayed",
    ]


class Forgetful(RecordedKernels):
    """Its graphs compute with what there was when they were recorded."""

    def graphs(self) -> Graphs:
        return replace(super().graphs(), new=NotReplayed)


class NotReplayed(RecordedGraph):
    @contextmanager
    def record(self) -> Iterator[None]:
        yield

    def replay(self) -> None:
        pass


def test_graphs_that_compute_nothing_are_found() -> None:
    assert set(wrong_ones(examine(Forgetful(), CPU))) == {
        "norm and linear, replayed",
        "rotary embedding, KV cache, replayed",
    }


class NoPool(RecordedKernels):
    """Of a card whose software has no graphs."""

    def graphs(self) -> Graphs:
        raise RuntimeError("no pool of memory\nmore of CANN")


def test_graphs_that_a_device_cannot_make_are_a_finding_and_the_others_are_examined() -> None:
    findings = list(examine(NoPool(), CPU))
    wrong = wrong_ones(iter(findings))

    assert len(findings) == 15
    assert {finding.refusal for finding in wrong.values()} == {"no pool of memory"}
    assert set(wrong) == {"norm and linear, replayed", "rotary embedding, KV cache, replayed"}


def test_what_is_wrong_is_found_and_the_others_are_examined() -> None:
    findings = list(examine(Wrong(), CPU))
    wrong = wrong_ones(iter(findings))

    assert len(findings) == 13
    assert set(wrong) == {
        "RMS norm",
        "add and RMS norm",
        "SwiGLU",
        "norm and linear, a scale a token",
        "norm and linear, one scale",
        "SwiGLU and linear, a scale a token",
        "the same with norms of heads",
        "attention of decodes and a chunk",
    }
    assert 0.016 < wrong["RMS norm"].error < 0.03
    assert wrong["SwiGLU"].refusal == "EZ9999: no operator takes (32, 6144)"
    assert wrong["attention of decodes and a chunk"].error == float("inf")


def test_the_reference_is_not_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "reference")

    with pytest.raises(ConfigError, match="device cpu has no kernels here but the reference"):
        examine_device("cpu")
