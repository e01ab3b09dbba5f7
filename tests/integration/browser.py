"""A real browser that shows a page whose script calls a service, and what the script sees."""

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.integration.served import MODEL
from tests.patience import HANG_S

CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
KEY: Final = "sk-of-a-page"
"""The page sends it."""
MESSAGES: Final = [{"role": "user", "content": "47+38=?"}]
ANSWER: Final = "85"
PAGE: Final = """\
<!doctype html><meta charset="utf-8"><title>Chat</title><script type="module">
const {url, key, body} = %s;
const seen = {pieces: [], headers: {}, error: null};
try {
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: {"Content-Type": "application/json", "Authorization": `Bearer ${key}`},
    body: JSON.stringify(body),
  });
  seen.status = answer.status;
  for (const name of ["x-request-id", "x-tandem-ignored-fields"])
    seen.headers[name] = answer.headers.get(name);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const {value, done} = await reader.read();
    if (done) break;
    seen.pieces.push(value);
  }
  const models = await fetch(`${url}/v1/models`, {headers: {"Authorization": `Bearer ${key}`}});
  seen.models = await models.json();
} catch (error) { seen.error = `${error}`; }
await fetch("/seen", {method: "POST", body: JSON.stringify(seen)});
</script>
"""


class Pages(ThreadingHTTPServer):
    """Serves one page within a block, and takes what its script has seen."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.page = ""
        self.seen: queue.Queue[Any] = queue.Queue()
        self.origin = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self._pages.page.encode() if self.path == "/" else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self._pages.seen.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    @property
    def _pages(self) -> Pages:
        assert isinstance(self.server, Pages)
        return self.server


@contextmanager
def browser(url: str, folder: Path) -> Iterator[None]:
    """Have a browser that shows a page until the end of the block."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed; apt-get install chromium-headless-shell brings one")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0")
    process = subprocess.Popen(
        [CHROMIUM, *options, f"--user-data-dir={folder}", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(HANG_S)


def ask(pages: Pages, url: str, folder: Path) -> Any:
    """Return what a page saw that sends a streamed chat to `url`, with a field of its own."""
    body = {"model": MODEL, "messages": MESSAGES, "stream": True, "temperature": 0, "chat_id": "1"}
    pages.page = PAGE % json.dumps({"url": url, "key": KEY, "body": body})
    with browser(pages.origin, folder):
        return pages.seen.get(timeout=HANG_S)


def check_answer(seen: Any) -> None:
    """Check that a page saw the whole stream, the headers and the models."""
    assert seen["error"] is None
    assert seen["status"] == 200
    *events, end, nothing = "".join(seen["pieces"]).split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == ANSWER
    assert seen["headers"]["x-request-id"]
    assert seen["headers"]["x-tandem-ignored-fields"] == "chat_id"
    assert [model["id"] for model in seen["models"]["data"]] == [MODEL]
