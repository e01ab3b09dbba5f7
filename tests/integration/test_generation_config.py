"""What a checkpoint's files say about answers holds over HTTP: their ends."""

from pathlib import Path
from typing import Any

from tandem_engine.text.codec import load_codec
from tests.integration.served import MODEL, Served, served, tiny_with
from tests.tiny import TINY

QUESTION = "47+38=?"
ANSWER = "85"


def ask(server: Served, **fields: Any) -> tuple[str | None, str]:
    """Return the answer to the question, and why it ended."""
    answer = server.openai().chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], extra_body=fields
    )
    return answer.choices[0].message.content, answer.choices[0].finish_reason


def test_an_end_that_config_json_alone_names_ends_an_answer(tmp_path: Path) -> None:
    folder = tiny_with(
        tmp_path / "model",
        generation_config={"eos_token_id": 0},
        tokenizer_config={"eos_token": None},
    )
    with served(folder) as server:
        answer = ask(server, temperature=0, max_tokens=24)

    assert answer == (ANSWER, "stop")
    assert "0 ! (generation_config.json)" in " ".join(server.start)
    assert "260 <|end|> (config.json)" in " ".join(server.start)


def test_the_ends_of_the_manifest_hold_in_place_of_the_checkpoints(tmp_path: Path) -> None:
    five = load_codec(TINY).encode("5")
    with served(tiny_with(tmp_path / "model"), eos_token_ids=five) as server:
        answer = ask(server, temperature=0, max_tokens=24)

    # As with every end token, it is counted, and its text is not part of the answer.
    assert answer == ("8", "stop")
