"""`tandem chat`: talk to a model in the terminal."""

from collections.abc import Generator
from contextlib import closing, suppress
from typing import Any, Final

import typer
from openai import APIConnectionError, APIError, AuthenticationError, DefaultHttpxClient, OpenAI

from tandem_serve.commands.common import EXIT_INTERRUPTED, err, out, print_error, report_errors
from tandem_serve.commands.service_client import check_key, host_of, service_url
from tandem_serve.errors import ServeError

_HELP: Final = """\
/help   this text
/clear  forget the conversation
/exit   leave; so does Ctrl-D
Ctrl-C stops an answer."""

# OpenAI's client requires a key, a service only if it has some.
_NO_KEY: Final = "none"

# A message in OpenAI's form: role and content.
Message = Any


def chat(
    message: str | None,
    *,
    url: str | None,
    api_key: str | None,
    system: str | None,
    temperature: float | None,
    max_tokens: int | None,
) -> None:
    """Send `message` and exit, or converse."""
    options = {"temperature": temperature, "max_tokens": max_tokens}
    with report_errors(), _client(service_url(None, url), api_key) as client:
        given = {key: value for key, value in options.items() if value is not None}
        conversation = Conversation(client, _model(client), given)
        conversation.begin(system)
        if message is None:
            _converse(conversation)
        elif not _answer(conversation, message):
            raise typer.Exit(EXIT_INTERRUPTED)


class Conversation:
    """A conversation with one model: its messages and the options of each request."""

    def __init__(self, client: OpenAI, model: str, options: dict[str, Any]) -> None:
        self._client = client
        self.model = model
        self._options = options
        self._system: list[Message] = []
        self._messages: list[Message] = []

    def begin(self, system: str | None) -> None:
        """Set the text before the conversation."""
        self._system = [{"role": "system", "content": system}] if system else []

    def clear(self) -> None:
        """Forget the messages."""
        self._messages.clear()

    def ask(self, text: str) -> Generator[str]:
        """Yield the answer as it comes; a partial answer is remembered, too.

        Raises:
            ServeError: the service refused or failed.
        """
        question = {"role": "user", "content": text}
        answer = ""
        try:
            # Closing the stream ends the request.
            with closing(self._request(question)) as chunks:
                for chunk in chunks:
                    piece = chunk.choices[0].delta.content if chunk.choices else None
                    if piece:
                        answer += piece
                        yield piece
        except APIError as error:
            raise ServeError(f"The service answered: {_error_message(error)}") from error
        except Exception as error:  # openai lets the errors of its transport through as they are
            raise ServeError(f"The answer was interrupted: {error!r}") from error
        finally:
            if answer:
                self._messages += [question, {"role": "assistant", "content": answer}]

    def _request(self, question: Message) -> Any:
        return self._client.chat.completions.create(
            model=self.model,
            messages=[*self._system, *self._messages, question],
            stream=True,
            **self._options,
        )


def _client(url: str, api_key: str | None) -> OpenAI:
    host = host_of(url)
    check_key(api_key)
    return OpenAI(
        base_url=f"{url.rstrip('/').removesuffix('/v1')}/v1",
        api_key=api_key or _NO_KEY,
        max_retries=0,
        http_client=DefaultHttpxClient(trust_env=host not in {"127.0.0.1", "localhost", "::1"}),
    )


def _model(client: OpenAI) -> str:
    """The first model that the service lists."""
    url = str(client.base_url).rstrip("/").removesuffix("/v1")
    try:
        return client.models.list().data[0].id
    except APIConnectionError:
        raise ServeError(
            f"No server answers at {url}; tandem status lists the services here, tandem serve "
            "-f FILE starts one, --url names one elsewhere."
        ) from None
    except AuthenticationError as error:
        if client.api_key == _NO_KEY:
            text = f"{url} requires an API key; pass one with --api-key or in TANDEM_API_KEY."
            raise ServeError(text) from None
        raise ServeError(f"{url} answered: {_error_message(error)}") from None
    except APIError as error:
        raise ServeError(f"{url} does not list its models: {_error_message(error)}") from None


def _error_message(error: APIError) -> str:
    """The service's own sentence; openai's text for an error is the whole answer."""
    sentence = error.body.get("message") if isinstance(error.body, dict) else None
    return str(sentence or error.message)


def _converse(conversation: Conversation) -> None:
    """Ask and answer until the user leaves."""
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415  # gives input() history and editing
    err.print(f"[dim]{conversation.model}; /help for help, Ctrl-D to leave[/dim]")
    while (text := _read()) is not None:
        if text == "/exit":
            return
        if text == "/clear":
            conversation.clear()
            err.print("[dim]conversation cleared[/dim]")
        elif text.startswith("/"):
            err.print(_HELP, markup=False)
        elif text:
            _answer_or_print_error(conversation, text)


def _read() -> str | None:
    """Read a line from the user; None: leave."""
    while True:
        try:
            return input("> ").strip()
        except EOFError:
            out.print()
            return None
        except KeyboardInterrupt:
            out.print()


def _answer_or_print_error(conversation: Conversation, text: str) -> None:
    try:
        _answer(conversation, text)
    except ServeError as error:
        print_error(str(error))


def _answer(conversation: Conversation, text: str) -> bool:
    """Print the answer as it comes; return False if the user stopped it."""
    answer = conversation.ask(text)
    try:
        for piece in answer:
            out.print(piece, end="", markup=False)
            out.file.flush()
    except KeyboardInterrupt:
        answer.close()
        out.print(" [dim](stopped)[/dim]")
        return False
    out.print()
    return True
