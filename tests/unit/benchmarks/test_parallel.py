"""The benchmark of several ranks: its steps are what they are called, and it measures them."""

import json
from pathlib import Path

import pytest

from benchmarks.parallel import faults
from benchmarks.parallel.handover import CASES, Settings, run_all
from benchmarks.parallel.handover_steps import record

pytestmark = pytest.mark.slow

TINY = Path(__file__).parents[3] / "examples" / "tandem-tiny"
NUM_ROWS = 4
NUM_STEPS = 10
CONTEXT = 256


@pytest.mark.parametrize("case", CASES)
def test_all_rows_decode_once_it_is_set_up(case: str) -> None:
    steps, set_up = record(case, NUM_ROWS, num_steps=NUM_STEPS, context=CONTEXT)

    measured = steps[set_up:]
    assert len(measured) == NUM_STEPS
    assert all(one.step.num_decodes >= NUM_ROWS for one in measured)
    assert any(one.step.beam_moves for one in measured) == (case == "beams")
    chunks = [one.step.total_tokens - one.step.num_decodes for one in measured]
    assert (max(chunks) > 100) == (case == "mixed")


def test_handing_over_is_measured_and_written(tmp_path: Path) -> None:
    out = tmp_path / "handover.json"
    run_all(
        Settings(
            rows=(NUM_ROWS,),
            cases=("decode",),
            readers=(2,),
            num_steps=NUM_STEPS,
            context=CONTEXT,
            pause_s=0.0,
            spin_s=0.0,
        ),
        out=out,
    )

    (figures,) = json.loads(out.read_text())["handover"]
    assert figures["num_bytes"] == 40 + 4 * NUM_ROWS
    assert figures["pickle_bytes"] > figures["num_bytes"]
    assert 0 < figures["work"] == sum(figures[part] for part in ("encode", "publish", "decode"))
    assert figures["through"] > 0


def test_each_fault_is_blamed_on_its_rank_and_written(tmp_path: Path) -> None:
    out = tmp_path / "faults.json"
    faults.run_all(
        faults.Settings(model=TINY, shapes=("tp2",), runs=2, busy=0, silence_s=2.0), out=out
    )

    (figures,) = json.loads(out.read_text())["faults"]
    assert figures["num_right"] == figures["runs"] == len(figures["found_s"]) == 2
    assert min(figures["found_s"]) > 0
    assert figures["num_false"] == 0
