"""A page on another port streams a chat in a real Chromium, as Open WebUI's direct connections do.

Browsers, not servers, keep a script from an answer: only one of them shows that a page of an
allowed origin gets its stream, and that one of another origin does not.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.browser import KEY, Pages, ask, check_answer
from tests.integration.served import served
from tests.tiny import TINY

pytestmark = pytest.mark.slow


@pytest.fixture
def pages() -> Iterator[Pages]:
    with Pages() as server:
        yield server


def test_a_page_of_an_allowed_origin_streams_a_chat(pages: Pages, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "page").write_text(KEY)
    settings = {"allowed_origins": (pages.origin,), "api_keys_folder": keys}
    with served(TINY, settings=settings) as server:
        check_answer(ask(pages, server.url, tmp_path / "profile"))


def test_a_page_of_another_origin_gets_nothing(pages: Pages, tmp_path: Path) -> None:
    settings = {"allowed_origins": ("https://chat.example.com",)}
    with served(TINY, settings=settings) as server:
        seen = ask(pages, server.url, tmp_path / "profile")

    assert "Failed to fetch" in seen["error"]
    assert not seen["pieces"]
