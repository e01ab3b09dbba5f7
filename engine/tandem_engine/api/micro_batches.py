"""Micro-batches, as a manifest asks for them: MindIE's stream_options, ccl and engine.graph."""

from typing import Final, Literal

from tandem_engine.api.checks import Check, Constant, Remainder, Value
from tandem_engine.api.model import Model
from tandem_engine.api.parallelism import num_tp

Graph = Literal["cpp", "python"]

MODEL_TYPES: Final = ("qwen2", "qwen3")
"""Models whose answers were compared with micro-batches and without, under MindIE's names."""

MC2_NEEDS_CARDS: Final = (
    "ccl.enableMc2 true needs cards, which multiply and add up among ranks in one operator; leave "
    "enableMc2 out, or set device: npu"
)

GRAPH_NEEDS_CARDS: Final = (
    "graph python needs cards, on which steps are recorded and replayed; leave graph out, or set "
    "device: npu"
)


def way_out(engine: str = "") -> str:
    """Return the way out of a refusal that is a matter of testing.

    Args:
        engine: Path to the engine's settings, with a point at its end; empty: they are here.
    """
    return f"set {engine}unsafeCombinations: true to run what is not tested"


class StreamOptions(Model):
    """Streams that a rank computes and communicates on: MindIE's stream_options."""

    micro_batch: bool = False
    """true: steps are cut into two halves where that is predicted to pay, and one half computes
    while the other communicates (MindIE's micro batch). Needs tp above 1, quantisation, and a model
    of the types qwen2 and qwen3; takes memory from the KV cache."""


class CclConfig(Model):
    """Communication between ranks: MindIE's ccl."""

    enable_mc2: bool = False
    """true: steps with prompt tokens multiply and add up among ranks in one operator of the card.
    Needs cards, tp 2, 4 or 8 without sp, and layers in float. MindIE's default is true."""


_MICRO_BATCH: Final = Value("streamOptions.microBatch")
_MC2: Final = Value("ccl.enableMc2")
_TP: Final = num_tp("parallelism.")
_SHARES_LAYERS: Final = num_tp("parallelism.") > Constant(1)
_PYTHON: Final = Value("graph").equals("python")

CHECKS: Final = (
    Check(
        field="ccl.enableMc2",
        refused=_MC2 & _MICRO_BATCH,
        problem="ccl.enableMc2 true excludes streamOptions.microBatch true: a fused operator "
        "keeps its communication to itself, so the other half could not compute meanwhile; leave "
        "one of the two out",
    ),
    Check(
        field="ccl.enableMc2",
        refused=_MC2 & Value("device").equals("cpu"),
        problem=MC2_NEEDS_CARDS,
    ),
    Check(
        field="ccl.enableMc2",
        refused=_MC2 & (~_SHARES_LAYERS | ~Remainder(Constant(8), _TP).equals(0)),
        problem="ccl.enableMc2 true adds up among the ranks of tp, of which the operator takes 2, "
        "4 or 8, and tp is {tp}; change parallelism.tp, or leave enableMc2 out",
        values={"tp": _TP},
    ),
    Check(
        field="ccl.enableMc2",
        refused=_MC2 & Value("parallelism.sp"),
        problem="ccl.enableMc2 true excludes parallelism.sp true, under which each rank gets its "
        "own rows of a sum alone; leave one of the two out",
    ),
    Check(
        field="graph",
        refused=_PYTHON & _MICRO_BATCH,
        problem="graph python excludes streamOptions.microBatch true: a graph has memory for one "
        "step, and two halves of it would be under way at once; leave one of the two out",
    ),
    Check(
        field="graph",
        refused=_PYTHON & Value("device").equals("cpu"),
        problem=GRAPH_NEEDS_CARDS,
    ),
    Check(
        field="streamOptions.microBatch",
        refused=_MICRO_BATCH & ~Value("unsafeCombinations") & ~_SHARES_LAYERS,
        problem="streamOptions.microBatch true needs ranks that communicate within a layer, and tp "
        f"is 1: there is nothing to hide; set parallelism.tp to 2 or more, or {way_out()}",
    ),
)
"""Refusals of the settings of an engine, by its paths; all but the last are for correctness."""


def quantization_checks(engine: str, quantization: str) -> tuple[Check, ...]:
    """Return the checks of micro-batches and MC2 against the layers' quantisation.

    Args:
        engine: Path to the engine's settings, with a point at its end; empty: they are here.
        quantization: Path to the quantisation.
    """
    field, mc2 = f"{engine}streamOptions.microBatch", f"{engine}ccl.enableMc2"
    in_float = Check(
        field=field,
        refused=Value(field)
        & ~Value(f"{engine}unsafeCombinations")
        & Value(quantization).equals("none"),
        problem=f"{field} true is tested with linear layers in 8 bits only, and {quantization} is "
        f"none; set {quantization}: w8a8, leave it out for a checkpoint in 8 bits, or "
        f"{way_out(engine)}",
    )
    in_8_bits = Check(
        field=mc2,
        refused=Value(mc2) & Value(quantization).equals("w8a8"),
        problem=f"{mc2} true adds up results of layers in float, and {quantization} is w8a8; leave "
        "one of the two out",
    )
    return in_float, in_8_bits
