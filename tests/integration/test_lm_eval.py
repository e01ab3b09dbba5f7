"""lm-eval, installed in a folder of its own and unchanged, against a real server."""

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem_engine.text.codec import load_codec
from tests.integration.installed import install
from tests.integration.served import MODEL, Served, served
from tests.tiny import TINY, held_out

# transformers reads the tokenizer alone, and brings no torch.
REQUIREMENTS: Final = ("lm-eval[api]==0.4.13", "transformers")
NUM_QUESTIONS: Final = 12
ATOL: Final = 1e-3
TASK: Final = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {output_type}
doc_to_text: "{{{{prompt}}}}"
target_delimiter: ""
{more}
"""
CHOICES: Final = """\
doc_to_choice: "{{choices}}"
doc_to_target: 0
metric_list: [{metric: acc}]"""
GENERATE: Final = """\
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["<|end|>"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lm_eval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command."""
    return install(tmp_path_factory.mktemp("lm-eval"), REQUIREMENTS) / "lm_eval"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(TINY) as running:
        yield running


def questions() -> list[dict[str, Any]]:
    """Prompts as texts, with a right answer before a wrong one."""
    codec = load_codec(TINY)
    return [
        {
            "prompt": codec.decode(codec.encode_chat(each.messages), skip_special_tokens=False),
            "answer": each.answer,
            "choices": [each.answer, f"{each.answer}!"],
        }
        for each in held_out(NUM_QUESTIONS)
    ]


def evaluate(lm_eval: Path, server: Served, folder: Path) -> tuple[Any, dict[str, list[Any]]]:
    """Run both tasks; return the results, and the samples of each in their order."""
    documents = questions()
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in documents))
    for name, output_type, more in (
        ("tiny_choices", "multiple_choice", CHOICES),
        ("tiny_generate", "generate_until", GENERATE),
    ):
        task = TASK.format(name=name, data=data, output_type=output_type, more=more)
        (folder / f"{name}.yaml").write_text(task)
    model = {
        "model": MODEL,
        "base_url": f"{server.url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(TINY),
        "max_length": 512,
    }
    done = subprocess.run(
        [
            *(lm_eval, "--model", "local-completions", "--tasks", "tiny_choices,tiny_generate"),
            *("--model_args", ",".join(f"{name}={value}" for name, value in model.items())),
            *("--include_path", folder, "--output_path", folder / "out", "--log_samples"),
            *("--batch_size", "4"),
        ],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = (folder / "out").rglob("results_*.json")
    samples = {
        name: [
            json.loads(line)
            for path in (folder / "out").rglob(f"samples_{name}_*.jsonl")
            for line in path.read_text().splitlines()
        ]
        for name in ("tiny_choices", "tiny_generate")
    }
    for each in samples.values():
        each.sort(key=lambda sample: sample["doc_id"])
    return json.loads(results.read_text())["results"], samples


@cache
def reference() -> Any:
    """The model of transformers."""
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)


def log_likelihood(prompt: str, answer: str) -> tuple[float, bool]:
    """Log-likelihood of an answer by transformers; True if it is the greedy one."""
    codec = load_codec(TINY)
    ids, num_prompt = codec.encode(prompt + answer), len(codec.encode(prompt))
    with torch.inference_mode():
        table = reference()(torch.tensor([ids])).logits[0, num_prompt - 1 : -1].log_softmax(dim=-1)
    own = table.gather(1, torch.tensor(ids[num_prompt:]).unsqueeze(1))
    return float(own.sum()), bool((own.squeeze(1) == table.max(dim=-1).values).all())


def test_lm_eval_gets_what_transformers_computes(
    lm_eval: Path, server: Served, tmp_path: Path
) -> None:
    results, samples = evaluate(lm_eval, server, tmp_path)

    documents = questions()
    right = 0
    for document, sample in zip(documents, samples["tiny_choices"], strict=True):
        expected = [log_likelihood(document["prompt"], each) for each in document["choices"]]
        right += expected[0][0] > expected[1][0]
        shown_each = [response for [response] in sample["resps"]]
        for (value, is_greedy), (shown, shown_greedy) in zip(expected, shown_each, strict=True):
            assert float(shown) == pytest.approx(value, abs=ATOL)
            assert str(shown_greedy) == str(is_greedy)
    assert results["tiny_choices"]["acc,none"] == pytest.approx(right / len(documents))
    answers = [sample["resps"][0][0] for sample in samples["tiny_generate"]]
    exact = sum(answer == each["answer"] for answer, each in zip(answers, documents, strict=True))
    assert results["tiny_generate"]["exact_match,none"] == pytest.approx(exact / len(documents))
    own = [
        server.openai().completions.create(
            model=MODEL, prompt=each["prompt"], max_tokens=24, temperature=0
        )
        for each in documents
    ]
    assert answers == [each.choices[0].text for each in own]
