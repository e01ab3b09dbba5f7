"""A checkpoint behind the real HTTP application and the real engine, in this process."""

import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import openai
import uvicorn

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.build import build_engine
from tandem_serve.http.app import build_app
from tandem_serve.http.settings import HttpSettings
from tests.patience import HANG_S
from tests.tiny import TINY

MODEL: Final = "tandem-tiny"


@dataclass(frozen=True)
class Served:
    """A server that runs, the lines of its start, and the clients that end before it."""

    url: str
    start: list[str]
    clients: ExitStack

    def openai(self) -> openai.OpenAI:
        """OpenAI's client, without its retries."""
        return self.clients.enter_context(
            openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        )

    def post(self, path: str, body: Any) -> httpx.Response:
        """Send a body as JSON."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=HANG_S)


@contextmanager
def served(
    folder: Path, *, settings: dict[str, Any] | None = None, **config: Any
) -> Iterator[Served]:
    """Serve the checkpoint in `folder` until the end of the block.

    Args:
        folder: The checkpoint.
        settings: Settings of the HTTP application.
        config: Settings of the engine.
    """
    values = {"dtype": "float32", "num_kv_blocks": 64, "num_threads": 1, "max_seq_len": 512}
    schedule = ScheduleConfig(template_type="Mix", cache_block_size=16)
    start: list[str] = []
    engine = build_engine(
        EngineConfig(model_path=str(folder), **{"schedule": schedule, **values, **config}),
        report=start.append,
    )
    http = HttpSettings(model_name=MODEL, created_s=int(time.time()), **(settings or {}))
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(http, lambda: engine), log_level="error", lifespan="off", ws="none"
        )
    )
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            # A connection that is collected open is an error of whichever test runs then.
            with ExitStack() as clients:
                yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", start, clients)
        finally:
            server.should_exit = True
            thread.join(HANG_S)
            engine._loop.stop()
            engine._loop.join()


def tiny_with(folder: Path, **files: dict[str, Any]) -> Path:
    """Copy tandem-tiny to `folder`, with other values in some of its files.

    Args:
        folder: A folder that does not exist.
        files: Name of a JSON file without its ending → the values to set; None removes one.
    """
    shutil.copytree(TINY, folder)
    for name, values in files.items():
        path = folder / f"{name}.json"
        document = json.loads(path.read_text()) | values
        kept = {key: value for key, value in document.items() if value is not None}
        path.write_text(json.dumps(kept))
    return folder
