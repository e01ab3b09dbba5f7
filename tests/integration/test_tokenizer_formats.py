"""Tokenizers without tokenizer.json: the command that Tandem names makes one of each format."""

import base64
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from tandem_engine.api.errors import CheckpointError
from tandem_engine.text.codec import load_codec
from tests.integration.installed import install
from tests.patience import HANG_S

pytestmark = pytest.mark.slow

TEXTS: Final = ("Hello the new cat", "日本 語", " two  spaces\n", "")
CORPUS: Final = "\n".join(["Hello the new cat is here", "the quick brown fox", "日本 語"] * 50)
MERGED: Final = (b"he", b"ll", b" t", b" the")
TRAIN: Final = """\
import sys
import sentencepiece
sentencepiece.SentencePieceTrainer.train(
    input=sys.argv[1], model_prefix=sys.argv[2], model_type=sys.argv[3], vocab_size=320,
    byte_fallback=True, hard_vocab_limit=False, bos_id=1, eos_id=2, unk_id=0)
"""
REFERENCE: Final = """\
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(json.dumps([tokenizer.encode(text) for text in json.loads(sys.argv[2])]))
"""
WAY_OUT: Final = r"where (.+?) (?:is|are) installed, this makes it: (.+)\.$"
Environment = Callable[[Sequence[str]], Path]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Packages → the Python of an environment that has them, and what they require."""

    @cache
    def made(packages: tuple[str, ...]) -> Path:
        # What is read has to be what Tandem's own version reads.
        pinned = [name.replace("transformers", _TRANSFORMERS) for name in packages]
        return install(tmp_path_factory.mktemp("packages"), pinned) / "python"

    return lambda packages: made(tuple(packages))


_TRANSFORMERS: Final = f"transformers=={version('transformers')}"


def run(python: Path, *arguments: str) -> str:
    done = subprocess.run([python, *arguments], check=True, capture_output=True, timeout=HANG_S)
    return done.stdout.decode()


def sentencepiece(kind: str) -> Callable[[Path, Environment], None]:
    """Write tokenizer.model as SentencePiece makes it."""

    def write(folder: Path, environment: Environment) -> None:
        (folder / "corpus").write_text(CORPUS)
        python = environment(("transformers", "sentencepiece", "protobuf", "tiktoken"))
        run(python, "-c", TRAIN, str(folder / "corpus"), str(folder / "tokenizer"), kind)
        for name in ("corpus", "tokenizer.vocab"):
            (folder / name).unlink()

    return write


def tiktoken(folder: Path, environment: Environment) -> None:
    """Write tokenizer.model as Llama 3 came first: a token and its rank on each line."""
    del environment
    tokens = [*(bytes([byte]) for byte in range(256)), *MERGED]
    lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens))
    (folder / "tokenizer.model").write_text("\n".join(lines))


def wordpiece(folder: Path, environment: Environment) -> None:
    """Write vocab.txt, as of BERT."""
    del environment
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "the", "new", "cat", "##s")
    (folder / "vocab.txt").write_text("\n".join(words))


def tekken(folder: Path, environment: Environment) -> None:
    """Write tekken.json, as Mistral's models have it."""
    del environment
    tokens = [*(bytes([byte]) for byte in range(256)), *MERGED]
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    special = [
        {"rank": rank, "token_str": text, "is_control": True}
        for rank, text in enumerate(("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    ]
    config = {
        "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
        "num_vocab_tokens": len(vocabulary),
        "default_vocab_size": len(vocabulary) + len(special),
        "default_num_special_tokens": len(special),
        "version": "v3",
    }
    document = {"config": config, "vocab": vocabulary, "special_tokens": special}
    (folder / "tekken.json").write_text(json.dumps(document))


KINDS: Final = {
    "SentencePiece, BPE": (sentencepiece("bpe"), "LlamaTokenizer"),
    "SentencePiece, unigram": (sentencepiece("unigram"), "LlamaTokenizer"),
    "tiktoken": (tiktoken, "PreTrainedTokenizerFast"),
    "WordPiece": (wordpiece, "BertTokenizer"),
    "tekken": (tekken, "PreTrainedTokenizerFast"),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_command_needs_no_more_than_it_says_and_gives_the_same_ids(
    name: str, environment: Environment, tmp_path: Path
) -> None:
    write, kind = KINDS[name]
    write(tmp_path, environment)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))

    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing") as refused:
        load_codec(tmp_path)
    found = re.search(
        r"where (.+?) (?:is|are) installed, this makes it: (.+)\.$", str(refused.value)
    )
    assert found
    python = environment(re.split(", | and ", found[1]))
    expected = json.loads(run(python, "-c", REFERENCE, str(tmp_path), json.dumps(TEXTS)))
    # The name python stands for the environment's.
    command = f'PATH="{python.parent}:$PATH"; {found[2]}'
    subprocess.run(["bash", "-c", command], check=True, timeout=HANG_S, capture_output=True)  # noqa: S607

    codec = load_codec(tmp_path)
    assert [codec.encode(text) for text in TEXTS] == expected
    assert any(expected)
