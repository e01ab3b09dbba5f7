"""Output that the docs show is what the commands print.

Where a command needs a server or a cluster, its own code renders the objects that the example is
about. Lines are compared without their padding, `…` stands for lines that are left out.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tandem_engine import doctor
from tandem_engine.api.micro_batch_stats import (
    GateState,
    MicroBatchStats,
    cost_line,
    gain_line,
    gate_line,
)
from tandem_engine.doctor import Examination, Finding
from tandem_operator.commands.get import HEADER, line_of, row_of, widths_of
from tandem_operator.crd.manifest import definition
from tandem_serve.cli import app
from tandem_serve.commands import apply as apply_command
from tandem_serve.commands.step_view import view
from tandem_serve.testing import FakeEngine
from tests.tiny import TINY
from tests.unit.docs import explained, stepped
from tests.unit.docs.kinds import BlockKind, blocks_of
from tests.unit.docs.pages import CONSOLE_LANGUAGES, Block, all_blocks, console_output
from tests.unit.serve.commands.test_status import write_log
from tests.unit.serve.local_services import RECORD, serving

URL: Final = "http://127.0.0.1:8000"
_MEMORY: Final = "Memory of each rank, about; a replica measures it when it starts:"
Printed = Callable[[Path, pytest.MonkeyPatch], str]

runner = CliRunner()


def applied(_: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the table of `tandem apply` for a chunk of half the size."""
    monkeypatch.setattr(apply_command, "applied", lambda _: stepped.service(256))
    monkeypatch.setattr(apply_command, "apply_service", lambda *_, **__: None)
    shown = StringIO()
    monkeypatch.setattr(apply_command, "out", Console(file=shown, width=200))
    apply_command.apply_to(RECORD, stepped.service(128), verbose=False)
    # The line behind the table says where the service answers.
    return "\n".join(shown.getvalue().splitlines()[:-1])


def quantized(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "models").mkdir()
    monkeypatch.chdir(folder)
    return runner.invoke(app, ["quantize", str(TINY), "models/tiny-w8a8"]).stdout


def examined(_: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the table of `tandem doctor`, with the errors of one CPU."""
    errors = {"embedding": 0.0, "RMS norm": 0.0, "attention of decodes and a chunk": 0.0011}
    others = [Finding(str(number), 0.0) for number in range(10)]
    first, second, last = (Finding(name, error) for name, error in errors.items())
    examination = Examination("x86_64", (first, second, *others, last))
    monkeypatch.setattr(doctor, "examine_device", lambda _: examination)
    # The line before the table has the versions.
    return "\n".join(runner.invoke(app, ["doctor"]).stdout.splitlines()[1:])


def listed(_: Path, __: pytest.MonkeyPatch) -> str:
    """Return the table of `tandem get`, whose columns are those that the CRD gives kubectl."""
    rows = [HEADER, row_of(explained.SERVING, explained.NOW)]
    columns = definition()["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = [column["name"].upper() for column in columns if not column.get("priority")]
    assert list(HEADER[1:]) == ["NAME", *shown]
    return "\n".join(line_of(row, widths_of(rows), first=1) for row in rows)


def refused(folder: Path, _: pytest.MonkeyPatch) -> str:
    """Return what `tandem validate` says of a manifest with two mistakes."""
    schedule = {"maxBatchSize": 0}
    file = stepped.manifest(folder, "./tiny", model={"maxSeqLn": 8}, engine={"schedule": schedule})
    return runner.invoke(app, ["validate", "-f", str(file)]).stderr


def served_from_a_claim(folder: Path, _: pytest.MonkeyPatch) -> str:
    file = stepped.manifest(folder, "pvc://models/tiny")
    return runner.invoke(app, ["serve", "-f", str(file)]).stderr


def cut_in_three(folder: Path, _: pytest.MonkeyPatch) -> str:
    """Return what `tandem validate` says of a number of ranks that the model does not allow."""
    engine, resources = {"parallelism": {"tp": 3}}, {"cpu": 3, "memory": "6Gi"}
    file = stepped.manifest(folder, f"file://{TINY}", engine=engine, resources=resources)
    return runner.invoke(app, ["validate", "-f", str(file)]).stderr


def micro_batches_in_float(folder: Path, _: pytest.MonkeyPatch) -> str:
    """Return what `tandem validate` says of micro-batches with a checkpoint in float."""
    engine = {"parallelism": {"tp": 2}, "streamOptions": {"microBatch": True}}
    resources = {"cpu": 2, "memory": "6Gi"}
    file = stepped.manifest(folder, f"file://{TINY}", engine=engine, resources=resources)
    return runner.invoke(app, ["validate", "-f", str(file)]).stderr


def other_tokenizer(folder: Path, _: pytest.MonkeyPatch) -> str:
    """Return what `tandem validate` says of a draft model that lacks one of the model's tokens."""
    draft = folder / "small"
    shutil.copytree(TINY, draft)
    tokenizer = json.loads((draft / "tokenizer.json").read_text(encoding="utf-8"))
    last = tokenizer["added_tokens"].pop()
    tokenizer["model"]["vocab"].pop(last["content"], None)
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    engine = {"speculation": {"draft": {"source": "./small"}}}
    file = stepped.manifest(folder, f"file://{TINY}", engine=engine)
    return runner.invoke(app, ["validate", "-f", str(file)]).stderr


def log_of_micro_batches(_: Path, __: pytest.MonkeyPatch) -> str:
    gate = GateState(is_open=False, reason="overlap 0.12 in the last 32 cut steps")
    stats = MicroBatchStats(
        num_splits=32,
        refusals={"no_gain": 900},
        hidden_s=1.0,
        exposed_s=8.0,
        overlap=0.12,
        gates={"prefill": gate},
        num_kv_blocks=40,
    )
    before = replace(stats, num_splits=0, refusals={}, hidden_s=0.0, exposed_s=0.0)
    lines = (cost_line(stats, 800), gate_line("prefill", gate), gain_line(before, stats))
    return "\n".join(lines)


def memory_of_ranks(folder: Path, _: pytest.MonkeyPatch) -> str:
    """Return the table of `tandem validate`, which stands behind its notes."""
    engine = {"parallelism": {"worldSize": 4, "pp": 2}}
    resources = {"cpu": 4, "memory": "6Gi"}
    file = stepped.manifest(folder, f"file://{TINY}", engine=engine, resources=resources)
    printed = runner.invoke(app, ["validate", "-f", str(file)]).stderr
    return printed[printed.index(_MEMORY) :]


def share_in_torch(folder: Path, _: pytest.MonkeyPatch) -> str:
    """Return the note of `tandem validate` on a width of which two ranks have an odd half each."""
    described = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    (folder / "odd").mkdir()
    changed = json.dumps(described | {"intermediate_size": 30})
    (folder / "odd" / "config.json").write_text(changed, encoding="utf-8")
    engine, resources = {"parallelism": {"tp": 2}}, {"cpu": 2, "memory": "6Gi"}
    file = stepped.manifest(folder, "./odd", engine=engine, resources=resources)
    lines = runner.invoke(app, ["validate", "-f", str(file)]).stderr.splitlines()
    return "\n".join(line for line in lines if "plain torch" in line)


def running(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the table of `tandem status` for one service that runs."""
    stepped.run_service(folder, monkeypatch)
    write_log(folder, "a", num_blocks=512)
    return runner.invoke(app, ["status"]).stdout


def steps_shown(_: Path, __: pytest.MonkeyPatch) -> str:
    shown = StringIO()
    Console(file=shown, width=240).print(view(stepped.report(), URL))
    return shown.getvalue()


def timeline_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what `tandem timeline` prints of the timeline of two steps on two ranks."""
    monkeypatch.chdir(folder)
    options = ["--steps", "2", "-o", "trace.json", "--png", "timeline.png"]
    with serving(FakeEngine()) as url:
        return runner.invoke(app, ["timeline", "--url", url, *options]).output


PRINTED: Final[dict[str, Printed]] = {
    "state: Service mine in namespace models has not been ready for 5m (PodFailed).": (
        lambda *_: explained.unschedulable()
    ),
    "state: Service mine in namespace models has not been ready for 10m (ClaimMissing).": (
        lambda *_: explained.without_claim()
    ),
    "state: Service tiny in namespace default serves, but its previous version: model "
    "tandem-tiny at http://tiny.default.svc:8000 answers.": lambda *_: explained.cut_off(),
    "error: spec.model.source: 'pvc://models/tiny' is a volume of Kubernetes; on this machine "
    "name a folder, file:///absolute/path or ./path, or give the manifest to a Kubernetes with "
    "kubectl apply": served_from_a_claim,
    "field from to change": applied,
    "name status replicas URL KV cache": running,
    "tandem-tiny at http://127.0.0.1:8000: 4 running, 1 waiting, 0 swapped out; 64 KV blocks: 55 "
    "held, 0 cached, 9 free; capacity for 2 × 512 tokens": steps_shown,
    "error: spec.model.maxSeqLn: unknown field; did you mean 'maxSeqLen'?": refused,
    "error: spec.engine.parallelism.tp is 3, but the model's 2 key-value heads can neither be "
    "shared by 3 ranks evenly nor be given to as many ranks each; this model can be cut into tp 1, "
    "2.": cut_in_three,
    _MEMORY: memory_of_ranks,
    "Micro-batches cost 40 of 840 KV blocks (4.8%): the buffers of two halves take their place": (
        log_of_micro_batches
    ),
    "micro-batch: Steps with prefill are cut on 2 of 2, and decode steps on 0 of 2 replicas; 87% "
    "of what could overlap did in the last hour; they cost 40 of 840 KV blocks of a replica; read "
    "25s ago.": lambda *_: explained.halves(),
    "device: AMD EPYC (cpu), 4.0 GiB for a rank, avx2 kernels; read 25s ago.": (
        lambda *_: explained.device()
    ),
    "memory: Rank 0: weights 1.1 MiB, largest step 21.4 MiB, KV cache 1.0 GiB, process 489.0 MiB; "
    "read 25s ago.": lambda *_: explained.memory(),
    "memory: Each of 4 ranks may take 1.5 GiB; what weights, KV cache and largest step take of it "
    "is not known before a replica has started and been read; tandem validate estimates it where "
    "the checkpoint's config.json is.": lambda *_: explained.unread_memory(),
    "note: steps are computed in plain torch, and take several times as long as with the CPU's "
    "kernels: in the share of each of 2 ranks intermediate_size is 15, and in float it must be a "
    "multiple of 2; tp 1 avoids that": share_in_torch,
    "error: spec.engine.streamOptions.microBatch is true, but the checkpoint is in float, and it "
    "is tested with linear layers in 8 bits only; quantise it as it is read (quantization w8a8), "
    "or set unsafeCombinations: true to run what is not tested.": micro_batches_in_float,
    "error: spec.engine.speculation.draft.source: the draft model has another tokenizer than the "
    "model: 271 tokens, not 272; name a smaller model of the same family, or set method: ngram, "
    "which needs none.": other_tokenizer,
    "layer outputs × inputs error": quantized,
    "kernel largest error at most 1.56%": examined,
    "recording up to 2 steps, for 10 s at most…": timeline_recorded,
    "NAME READY REPLICAS MODEL URL REASON AGE": listed,
}
"""The first line of each example → what prints it."""

HISTORY: Final = [block for block in all_blocks(*CONSOLE_LANGUAGES) if console_output(block)]


def words(line: str) -> str:
    return " ".join(line.split())


def matches(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Return True when `shown` is `printed`, in which `…` may stand for any lines."""
    if not shown:
        return not printed
    if shown[0] == "…":
        return any(matches(shown[1:], printed[at:]) for at in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and matches(shown[1:], printed[1:])


@pytest.mark.parametrize("block", blocks_of(BlockKind.OUTPUT), ids=str)
def test_a_command_prints_what_the_docs_show(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = words(block.lines[0])
    assert first in PRINTED, f"{block}: no function prints this example; add one to PRINTED"

    printed = [words(line) for line in PRINTED[first](tmp_path, monkeypatch).splitlines()]

    shown = [words(line) for line in block.lines]
    assert matches(shown, printed), "\n".join(printed)


def test_every_function_prints_an_example() -> None:
    assert {words(block.lines[0]) for block in blocks_of(BlockKind.OUTPUT)} == {*PRINTED}


@pytest.mark.parametrize("block", HISTORY, ids=str)
def test_output_below_a_command_is_a_dated_result(block: Block) -> None:
    """It was printed on its day; the tables hold together, and the command parses."""
    assert "results" in block.page.parts
    assert columns_are_filled(console_output(block))


def columns_are_filled(lines: Sequence[str]) -> bool:
    """Return True when the rows of each table end where its header ends."""
    tables: list[list[str]] = [[]]
    for line in lines:
        tables[-1].append(line) if line.strip() else tables.append([])
    return all(len({len(line) for line in table if "  " in line}) == 1 for table in tables)
