"""A conversation in the terminal: questions, memory, and answers that stop."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from openai import APIError

from tandem_serve.commands import chat
from tandem_serve.commands.chat import Conversation
from tandem_serve.errors import ServeError


class FakeOpenAI:
    """A client of OpenAI's whose answers are given beforehand; an error in one is raised."""

    def __init__(self, *answers: list[str | BaseException]) -> None:
        self._answers = list(answers)
        self.requested: list[dict[str, Any]] = []
        self.num_closed = 0
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, **request: Any) -> "FakeChunks":
        self.requested.append(request)
        return FakeChunks(self._answers.pop(0), self)


class FakeChunks:
    """A streamed completion."""

    def __init__(self, pieces: list[str | BaseException], client: FakeOpenAI) -> None:
        self._pieces = pieces
        self._client = client

    def __iter__(self) -> Iterator[Any]:
        # The first chunk has no text, the last one no choice: usage.
        yield chunk_of(None)
        for piece in self._pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield chunk_of(piece)
        yield SimpleNamespace(choices=[])

    def close(self) -> None:
        self._client.num_closed += 1


def chunk_of(text: str | None) -> Any:
    return SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(content=text))])


def talk_with(client: Any, **options: Any) -> Conversation:
    return Conversation(client, "m", options)


def texts(request: dict[str, Any]) -> list[str]:
    return [message["content"] for message in request["messages"]]


def test_an_answer_comes_in_pieces_and_is_remembered() -> None:
    client = FakeOpenAI(["4", "2"], ["yes"])
    conversation = talk_with(client, temperature=0.0)
    conversation.begin("Be brief.")

    first, second = list(conversation.ask("12 + 30?")), list(conversation.ask("Sure?"))

    assert (first, second) == (["4", "2"], ["yes"])
    assert texts(client.requested[1]) == ["Be brief.", "12 + 30?", "42", "Sure?"]
    assert client.requested[0]["temperature"] == 0.0
    assert client.num_closed == 2


def test_what_is_cleared_is_not_sent_but_the_system_text_is() -> None:
    client = FakeOpenAI(["one"], ["two"])
    conversation = talk_with(client)
    conversation.begin("Be brief.")
    list(conversation.ask("first"))

    conversation.clear()
    list(conversation.ask("second"))

    assert texts(client.requested[1]) == ["Be brief.", "second"]


def test_ctrl_c_ends_the_request_and_keeps_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    client = FakeOpenAI(["half", KeyboardInterrupt()], ["go on"])
    conversation = talk_with(client)

    assert not chat._answer(conversation, "long?")
    assert chat._answer(conversation, "more")

    assert client.num_closed == 2
    assert texts(client.requested[1]) == ["long?", "half", "more"]
    assert capsys.readouterr().out == "half (stopped)\ngo on\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (APIError("too many requests", request=None, body=None), "The service answered: too many"),  # type: ignore[arg-type]
        (OSError("connection reset"), "The answer was interrupted: OSError"),
    ],
)
def test_a_failure_is_one_sentence_and_the_question_is_forgotten(
    error: Exception, words: str
) -> None:
    client = FakeOpenAI([error], ["fine"])
    conversation = talk_with(client)

    with pytest.raises(ServeError, match=words):
        list(conversation.ask("first"))
    list(conversation.ask("second"))

    assert texts(client.requested[1]) == ["second"]


def test_a_conversation_goes_on_until_the_user_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = FakeOpenAI(["a1"], [OSError("gone")], ["a3"])
    lines = iter(["q1", "", "/clear", "/what", "q2", "q3", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))

    chat._converse(talk_with(client))

    captured = capsys.readouterr()
    assert captured.out == "a1\na3\n"
    assert "forget the conversation" in captured.err
    assert "error: The answer was interrupted" in captured.err
    assert texts(client.requested[2]) == ["q3"]


def test_ctrl_d_leaves_and_ctrl_c_at_the_prompt_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    typed: Iterator[str | BaseException] = iter([KeyboardInterrupt(), "text", EOFError()])

    def read(_: str) -> str:
        following = next(typed)
        if isinstance(following, BaseException):
            raise following
        return following

    monkeypatch.setattr("builtins.input", read)

    assert chat._read() == "text"
    assert chat._read() is None
