"""API keys: which are valid, who needs one, and what is said to one who has none."""

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

import httpx
import openai
import pytest
from fastapi import Request
from hypothesis import example, given
from hypothesis import strategies as st

from tandem_engine.api.request import check_cache_salt
from tandem_serve.http.admission.api_keys import (
    REREAD_AFTER_S,
    cache_salt_of,
    check_key,
    read_digests,
)
from tandem_serve.http.errors import ApiError
from tandem_serve.testing import FakeEngine, client_of, fake_app

KEY = "sk-tandem-1"
PATHS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/metrics"),
    ("GET", "/nothing/here"),
    ("GET", "/health/"),
]


def digests_of(keys: Iterable[bytes]) -> list[bytes]:
    return [hashlib.sha256(key).digest() for key in keys]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one key."""
    (tmp_path / "first").write_text(f"{KEY}\n")
    return tmp_path


class Secret:
    """A Secret as kubelet mounts it: links to files in a folder that is swapped as a whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = 0

    def write(self, **keys: str) -> None:
        self._version += 1
        version = self._folder / f"..2026_11_21_{self._version}"
        version.mkdir()
        for name, key in keys.items():
            (version / name).write_text(key)
        draft = self._folder / "..data_tmp"
        draft.symlink_to(version.name)
        draft.replace(self._folder / "..data")
        for link in [*self._folder.iterdir()]:
            if not link.name.startswith("..") and link.name not in keys:
                link.unlink()
        for name in keys:
            if not (self._folder / name).is_symlink():
                (self._folder / name).symlink_to(f"..data/{name}")


class FakeClock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def message_of(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    assert error["param"] is None
    return str(error["message"])


tokens = st.binary(min_size=1).map(bytes.strip).filter(bool)


@given(st.sets(tokens, min_size=1), tokens)
def test_a_key_is_valid_when_it_is_one_of_them(keys: set[bytes], given_key: bytes) -> None:
    headers = [(b"authorization", b"Bearer " + given_key)]
    if given_key in keys:
        assert check_key(headers, digests_of(keys)) == hashlib.sha256(given_key).digest()
    else:
        with pytest.raises(ApiError):
            check_key(headers, digests_of(keys))


def test_each_file_is_a_key(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\n")
    (tmp_path / "b").write_bytes("drei-ä ".encode())
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "..data").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")

    assert set(read_digests(tmp_path)) == set(digests_of([b"one", "drei-ä".encode()]))


def test_a_folder_that_is_not_there_holds_no_key(tmp_path: Path) -> None:
    assert read_digests(tmp_path / "none") == ()


@pytest.mark.parametrize("header", ["Bearer sk", "bearer sk", "BEARER  sk ", "Bearer sk\t"])
def test_a_key_comes_as_a_bearer_token(header: str) -> None:
    check_key([(b"host", b"x"), (b"Authorization", header.encode())], digests_of([b"sk"]))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([], "The request has no API key"),
        ([(b"authorization", b"sk")], "The request has no API key"),
        ([(b"authorization", b"Basic sk")], "The request has no API key"),
        ([(b"authorization", b"Bearer ")], "The request has no API key"),
        ([(b"authorization", b"Bearer SK")], "is not valid"),
        ([(b"authorization", b"Bearer sk sk")], "is not valid"),
        ([(b"authorization", b"Bearer \xff")], "is not valid"),
    ],
)
def test_what_is_no_valid_key_is_refused(headers: list[tuple[bytes, bytes]], words: str) -> None:
    with pytest.raises(ApiError, match=words):
        check_key(headers, digests_of([b"sk", b"other"]))


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_every_path_but_health_needs_a_key(folder: Path, method: str, path: str) -> None:
    engine = FakeEngine()
    async with client_of(fake_app(engine, api_keys_folder=folder)) as client:
        without = await client.request(method, path)
        wrong = await client.request(method, path, headers=bearer("sk-secret"))
        valid = await client.request(method, path, headers=bearer(KEY))

    assert message_of(without) == (
        "The request has no API key; send one in the header 'Authorization: Bearer KEY'."
    )
    assert "sk-secret" not in message_of(wrong)
    assert valid.status_code != 401
    assert not engine.submitted


async def test_health_needs_no_key(folder: Path) -> None:
    async with client_of(fake_app(FakeEngine(), api_keys_folder=folder)) as client:
        assert (await client.get("/health")).status_code == 200


async def test_without_a_folder_no_request_needs_a_key() -> None:
    async with client_of(fake_app(FakeEngine())) as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_folder_without_keys_refuses_every_request(tmp_path: Path) -> None:
    async with client_of(fake_app(FakeEngine(), api_keys_folder=tmp_path)) as client:
        refused = await client.get("/v1/models", headers=bearer(""))

    assert "its Secret of API keys is empty or unreadable" in message_of(refused)


async def test_openais_client_brings_its_key(folder: Path) -> None:
    app = fake_app(FakeEngine(), api_keys_folder=folder)
    async with client_of(app) as http_client:
        client = openai.AsyncOpenAI(
            api_key=KEY,
            base_url="http://test/v1",
            http_client=http_client,  # type: ignore[arg-type]  # OpenAI's is typed for its own httpx
            max_retries=0,
        )
        answer = await client.completions.create(model="tiny", prompt="ab")
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.with_options(api_key="sk-other").models.retrieve("tiny")

    assert answer.choices[0].text == "ba"
    assert caught.value.code == "invalid_api_key"


async def test_keys_follow_the_secret_without_a_restart(tmp_path: Path) -> None:
    secret, clock = Secret(tmp_path), FakeClock()
    secret.write(a="old", b="common")
    app = fake_app(FakeEngine(), api_keys_folder=tmp_path, monotonic_s=clock)

    async def valid() -> set[str]:
        found = set()
        for key in ("old", "common", "new"):
            response = await client.get("/v1/models", headers=bearer(key))
            found |= {key} if response.status_code == 200 else set()
        return found

    async with client_of(app) as client:
        assert await valid() == {"old", "common"}
        secret.write(b="common", c="new")
        clock.now_s += REREAD_AFTER_S / 2
        assert await valid() == {"old", "common"}
        clock.now_s += REREAD_AFTER_S / 2
        assert await valid() == {"common", "new"}
        secret.write()
        clock.now_s += REREAD_AFTER_S
        assert await valid() == set()


async def test_no_key_is_ever_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with client_of(fake_app(FakeEngine(), api_keys_folder=folder)) as client:
        await client.get("/v1/models", headers=bearer(KEY))
        await client.get("/v1/models", headers=bearer("sk-secret"))

    assert KEY not in caplog.text
    assert "sk-secret" not in caplog.text


def call_with(key: bytes | None) -> Request:
    """A call as the middleware passes it on; None: no keys are in use."""
    state = {} if key is None else {"key_digest": hashlib.sha256(key).digest()}
    return Request({"type": "http", "state": state})


calls = st.tuples(st.sampled_from([b"sk-1", b"sk-2", b"sk-11"]), st.text(max_size=8))


@given(calls, calls)
@example((b"sk-1", "1"), (b"sk-11", ""))
@example((b"sk-1", "\ud800"), (b"sk-1", ""))
def test_prefixes_are_shared_by_calls_of_one_key_and_one_salt_alone(
    first: tuple[bytes, str], second: tuple[bytes, str]
) -> None:
    one, other = (cache_salt_of(call_with(key), salt) for key, salt in (first, second))

    assert (one == other) == (first == second)
    check_cache_salt(one)


@given(calls)
def test_no_salt_of_a_caller_leads_into_the_prefixes_of_another_key(
    victim: tuple[bytes, str],
) -> None:
    key, salt = victim
    aim = cache_salt_of(call_with(key), salt)

    assert cache_salt_of(call_with(b"sk-thief"), aim) != aim
    assert cache_salt_of(call_with(key), aim) != aim


@given(st.text(max_size=8))
def test_without_keys_the_salt_is_the_caller_s(salt: str) -> None:
    assert cache_salt_of(call_with(None), salt) == salt


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_engine_gets_a_salt_of_the_key(tmp_path: Path, path: str) -> None:
    for name in ("sk-a", "sk-b"):
        (tmp_path / name).write_text(name)
    engine = FakeEngine()
    fields = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    name = "messages" if "chat" in path else "prompt"
    body = {"model": "tiny", name: fields[name]}
    async with client_of(fake_app(engine, api_keys_folder=tmp_path)) as client:
        for key, salt in [("sk-a", {}), ("sk-b", {}), ("sk-a", {"cache_salt": "s"}), ("sk-a", {})]:
            await client.post(path, json=body | salt, headers=bearer(key))

    salts = [submitted.cache_salt for submitted in engine.submitted]
    assert len(set(salts)) == 3
    assert salts[0] == salts[3]
    assert not any("sk-" in salt for salt in salts)


async def test_the_longest_salt_is_taken_with_a_key(folder: Path) -> None:
    async with client_of(fake_app(FakeEngine(), api_keys_folder=folder)) as client:
        answers = [
            await client.post(
                "/v1/completions",
                json={"model": "tiny", "prompt": "hi", "cache_salt": "é" * length},
                headers=bearer(KEY),
            )
            for length in (256, 257)
        ]

    assert [answer.status_code for answer in answers] == [200, 400]


async def test_what_is_refused_is_counted(folder: Path) -> None:
    async with client_of(fake_app(FakeEngine(), api_keys_folder=folder)) as client:
        await client.get("/v1/models")
        metrics = (await client.get("/metrics", headers=bearer(KEY))).text

    assert 'code="401"' in metrics
