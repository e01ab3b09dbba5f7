"""Micro-batches that are refused, and those that are taken."""

from collections.abc import Iterator
from typing import Any, Final

from tests.unit.operator.crd.bad_ranks import RANKS
from tests.unit.operator.crd.forms import Bad, wrong_value

ENGINE: Final = "spec.engine"
MICRO_BATCH: Final = f"{ENGINE}.streamOptions.microBatch"
UNSAFE: Final = f"{ENGINE}.unsafeCombinations"
_TWO_RANKS: Final[dict[str, Any]] = {f"{RANKS}.tp": 2, "spec.resources.cpu": 2}
_ON: Final = {MICRO_BATCH: True, **_TWO_RANKS}
_MC2: Final[dict[str, Any]] = {
    f"{ENGINE}.ccl.enableMc2": True,
    "spec.resources.npu": 2,
    "spec.resources.npuProfile": "910b",
    **_TWO_RANKS,
}

GOOD_MICRO_BATCHES: Final[dict[str, dict[str, Any]]] = {
    "micro-batches": _ON,
    "micro-batches of a world alone": {
        MICRO_BATCH: True,
        f"{RANKS}.worldSize": 4,
        f"{RANKS}.pp": 2,
        "spec.resources.cpu": 4,
    },
    "micro-batches with everything off that excludes them": _ON
    | {f"{ENGINE}.ccl.enableMc2": False, f"{ENGINE}.graph": "cpp", UNSAFE: False}
    | {"spec.model.quantization": "w8a8"},
    "micro-batches that are not tested": {
        MICRO_BATCH: True,
        UNSAFE: True,
        "spec.model.quantization": "none",
    },
    "operators that communicate": _MC2,
    "no micro-batches": {MICRO_BATCH: False, "spec.model.quantization": "none"},
    "nothing that is lifted": {UNSAFE: True},
}


def bad_micro_batches() -> Iterator[Bad]:
    """One for every rule, and those that unsafeCombinations must not lift."""
    yield wrong_value(f"{ENGINE}.graph", "torch", "supported values", "allowed: cpp, python")
    yield Bad(
        "micro-batches and operators that communicate",
        _ON | {f"{ENGINE}.ccl.enableMc2": True, UNSAFE: True},
        f"{ENGINE}.ccl.enableMc2",
        "ccl.enableMc2 true excludes streamOptions.microBatch true: a fused operator keeps its "
        "communication to itself, so the other half could not compute meanwhile; leave one of",
    )
    yield Bad(
        "operators that communicate, on CPUs",
        _ON | {MICRO_BATCH: False, f"{ENGINE}.ccl.enableMc2": True, f"{ENGINE}.device": "cpu"},
        f"{ENGINE}.ccl.enableMc2",
        "ccl.enableMc2 true needs cards, which multiply and add up among ranks in one operator; "
        "leave enableMc2 out, or set device: npu",
    )
    yield Bad(
        "operators that communicate, without cards",
        _ON | {MICRO_BATCH: False, f"{ENGINE}.ccl.enableMc2": True},
        f"{ENGINE}.ccl.enableMc2",
        "engine.ccl.enableMc2 true needs cards, which multiply and add up among ranks in one "
        "operator, and resources.npu is 0; set npu: 2, or leave enableMc2 out",
    )
    yield Bad(
        "operators that communicate among three",
        _MC2 | {f"{RANKS}.tp": 3, "spec.resources.npu": 3, "spec.resources.cpu": 3},
        f"{ENGINE}.ccl.enableMc2",
        "ccl.enableMc2 true adds up among the ranks of tp, of which the operator takes 2, 4 or 8, "
        "and tp is 3; change parallelism.tp, or leave enableMc2 out",
    )
    yield Bad(
        "operators that communicate, and layers in 8 bits",
        _MC2 | {"spec.model.quantization": "w8a8"},
        f"{ENGINE}.ccl.enableMc2",
        "engine.ccl.enableMc2 true adds up results of layers in float, and model.quantization is "
        "w8a8; leave one of the two out",
    )
    yield Bad(
        "operators that communicate, and rows that are shared",
        _MC2 | {f"{RANKS}.sp": True},
        f"{ENGINE}.ccl.enableMc2",
        "ccl.enableMc2 true excludes parallelism.sp true, under which each rank gets its own rows "
        "of a sum alone; leave one of the two out",
    )
    yield Bad(
        "micro-batches of a graph in Python",
        _ON | {f"{ENGINE}.graph": "python", UNSAFE: True},
        f"{ENGINE}.graph",
        "graph python excludes streamOptions.microBatch true: a graph has memory for one step, and "
        "two halves of it would be under way at once; leave one of the two out",
    )
    yield Bad(
        "a graph of a processor",
        {f"{ENGINE}.graph": "python", f"{ENGINE}.device": "cpu", UNSAFE: True},
        f"{ENGINE}.graph",
        "graph python needs cards, on which steps are recorded and replayed; leave graph out, or "
        "set device: npu",
    )
    yield Bad(
        "a graph without cards",
        {f"{ENGINE}.graph": "python", UNSAFE: True},
        f"{ENGINE}.graph",
        "engine.graph python needs cards, on which steps are recorded and replayed, and "
        "resources.npu is 0; set npu: 1, or leave graph out",
    )
    for fault, degrees in {"one rank": {}, "stages alone": {f"{RANKS}.pp": 2}}.items():
        yield Bad(
            f"micro-batches of {fault}",
            {MICRO_BATCH: True, "spec.resources.cpu": 2, **degrees},
            MICRO_BATCH,
            "streamOptions.microBatch true needs ranks that communicate within a layer, and tp is "
            "1: there is nothing to hide; set parallelism.tp to 2 or more, or set "
            "unsafeCombinations: true to run what is not tested",
        )
    yield Bad(
        "micro-batches in float",
        _ON | {"spec.model.quantization": "none"},
        MICRO_BATCH,
        "engine.streamOptions.microBatch true is tested with linear layers in 8 bits only, and "
        "model.quantization is none; set model.quantization: w8a8, leave it out for a checkpoint "
        "in 8 bits, or set engine.unsafeCombinations: true to run what is not tested",
    )
