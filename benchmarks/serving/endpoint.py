"""Facts that a server tells of itself: its model, its limit, ordinary token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.prompts import SAMPLE_TEXT
from benchmarks.serving.settings import EndpointSettings

_TIMEOUT_S: Final = 30.0
_LOOPBACK: Final = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server that can be measured."""

    base_url: str
    """Ends with /v1."""
    model: str
    max_model_len: int | None
    """Prompt and answer together, in tokens; None: the server does not say."""
    token_ids: Sequence[int]
    """Ids that prompts are made of."""
    api_key: str | None


def find_endpoint(url: str, options: EndpointSettings) -> Endpoint:
    """Ask the server at `url` what has to be known before a request can be made.

    Raises:
        WrongUsage: `url` is none.
        BenchmarkError: the server does not answer, or not as it should.
    """
    base_url = _base_url(url)
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    # A proxy of the environment has no business between this machine and itself.
    trust_env = urlsplit(base_url).hostname not in _LOOPBACK
    with httpx.Client(headers=headers, trust_env=trust_env, timeout=_TIMEOUT_S) as client:
        models = _models(_ask(client, "GET", f"{base_url}/models"))
        if options.model is not None and options.model not in models:
            raise BenchmarkError(f"{base_url} serves {', '.join(models)}, not '{options.model}'.")
        model = options.model or next(iter(models))
        return Endpoint(
            base_url=base_url,
            model=model,
            max_model_len=models[model],
            token_ids=_range(options) or _ordinary_tokens(client, base_url, model),
            api_key=options.api_key,
        )


def _base_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise WrongUsage(f"'{url}' is not a URL; write it like http://127.0.0.1:8000/v1.")
    return url.rstrip("/").removesuffix("/v1") + "/v1"


def _range(options: EndpointSettings) -> Sequence[int]:
    return range(options.token_ids[0], options.token_ids[1] + 1) if options.token_ids else ()


def _models(document: Any) -> dict[str, int | None]:
    """The names of the models, and how long each may be."""
    try:
        models = {entry["id"]: entry.get("max_model_len") for entry in document["data"]}
    except (KeyError, TypeError, AttributeError):
        models = {}
    if not models:
        raise BenchmarkError("The server lists no model at /v1/models.")
    return models


def _ordinary_tokens(client: httpx.Client, base_url: str, model: str) -> Sequence[int]:
    """The distinct tokens of a text."""
    body = {"model": model, "prompt": SAMPLE_TEXT, "add_special_tokens": False}
    try:
        document = _ask(client, "POST", f"{base_url.removesuffix('/v1')}/tokenize", json=body)
        token_ids = sorted(set(map(int, document["tokens"])))
    except (BenchmarkError, KeyError, TypeError, ValueError):
        token_ids = []
    if not token_ids:
        raise BenchmarkError(
            "The server has no /tokenize that could tell ordinary token ids; "
            "name some with --token-ids, such as 100-999."
        )
    return token_ids


def _ask(client: httpx.Client, method: str, url: str, **options: Any) -> Any:
    try:
        response = client.request(method, url, **options)
        response.raise_for_status()
        return response.json()
    except httpx.HTTPStatusError as error:
        raise BenchmarkError(f"{url} answers with status {error.response.status_code}.") from None
    except (httpx.HTTPError, httpx.InvalidURL):
        raise BenchmarkError(f"No server answers at {url}; is the server running?") from None
    except ValueError:
        raise BenchmarkError(f"{url} does not answer with JSON; is it an OpenAI server?") from None
