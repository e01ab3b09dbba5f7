"""The manifest that the README shows starts as it stands, on a model of that shape."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tandem_serve.api.document import AppArgs, LiveSettings, ServeOptions
from tandem_serve.api.manifest import parse_manifest

ROOT = Path(__file__).parents[2]
GIB = 2**30
HIDDEN, MLP, LAYERS, HEADS, KV_HEADS, HEAD, VOCABULARY = 1024, 3072, 28, 16, 8, 128, 151_936
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "vocab_size": VOCABULARY,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# In a process of its own, as a replica is: what others have loaded would count as the process.
START = """
import asyncio, json, sys
from dataclasses import asdict
from tandem_engine.api.config import EngineConfig
from tandem_engine.api.request import SamplingParams
from tandem_engine.build import build_engine
from tandem_engine.device.cpu.memory import resident_memory

async def main():
    said = []
    config = EngineConfig.model_validate_json(sys.stdin.read())
    engine = build_engine(config, report=said.append)
    sampling = SamplingParams(max_tokens=2, temperature=1.0, ignore_eos=True)
    outputs = [output async for output in engine.submit("r", range(64), sampling)]
    tokens = sum(len(output.token_ids) for output in outputs)
    told = {"said": said, "limits": asdict(engine.limits), "tokens": tokens}
    print(json.dumps(told | {"resident": resident_memory()}))
    await engine.stop()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Qwen3-0.6B of random weights, 1.2 GB; gone afterwards."""
    folder = tmp_path_factory.mktemp("qwen3-0.6b")
    chance = torch.Generator().manual_seed(0)
    some = (torch.randn(2**20, generator=chance) * 0.02).to(torch.bfloat16)
    weights = {name: _filled(shape, some) for name, shape in _shapes().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    del weights
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "examples" / "tandem-tiny" / name, folder)
    yield folder
    shutil.rmtree(folder)


def _filled(shape: tuple[int, ...], some: torch.Tensor) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    count = shape[0] * shape[1]
    return some.repeat(-(-count // len(some)))[:count].view(shape).clone()


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (HIDDEN,),
            f"{layer}.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{layer}.self_attn.q_norm.weight": (HEAD,),
            f"{layer}.self_attn.k_norm.weight": (HEAD,),
            f"{layer}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
            f"{layer}.mlp.gate_proj.weight": (MLP, HIDDEN),
            f"{layer}.mlp.up_proj.weight": (MLP, HIDDEN),
            f"{layer}.mlp.down_proj.weight": (HIDDEN, MLP),
        }
    return shapes


def manifest_of_the_readme() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"```yaml\n(# isvc\.yaml\n.*?)```", text, re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.mark.slow  # A checkpoint of 1.2 GB.
def test_the_model_of_the_readme_starts_from_its_manifest_as_it_stands(checkpoint: Path) -> None:
    manifest = manifest_of_the_readme()
    assert "Qwen3-0.6B" in manifest
    service = parse_manifest(manifest, folder=ROOT)
    args, live = AppArgs.of(service, ServeOptions()), LiveSettings.of(service)
    config = args.engine.engine_config(live).model_copy(update={"model_path": str(checkpoint)})
    assert config.memory_bytes == 4 * GIB

    # A field that is not written has to stay open on the way.
    text = config.model_dump_json(exclude_unset=True)
    done = subprocess.run(
        [sys.executable, "-c", START], input=text, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    limits, (*_, last) = told["limits"], told["said"]
    assert told["tokens"] == 2
    # One sequence of the model's limit takes 4.4 GiB: it is less, and that is said.
    assert 4096 <= limits["max_seq_len"] < 40_960
    assert f"maxSeqLen {limits['max_seq_len']} of the model's 40960" in last
    assert 1 <= limits["max_batch_size"] <= 200
    assert limits["num_kv_blocks"] * 128 >= limits["max_seq_len"]
    assert any(line.startswith("Memory: 4.00 GiB, of which the process") for line in told["said"])
    assert any(line.startswith("maxIterTimes is 512: every answer ends") for line in told["said"])
    assert told["resident"] < 4 * GIB
