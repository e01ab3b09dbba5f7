"""Services of this machine as tests of the command line need them: recorded, served, silent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from tandem_serve.local.records import Record
from tandem_serve.testing import FakeEngine, fake_app

RECORD: Final = Record(
    name="tiny",
    pid=0,
    started=0,
    run_dir="/none",
    host="127.0.0.1",
    port=8000,
    base_port=20000,
    token="",
    service={},
)
"""Of a service that no process belongs to."""


@contextmanager
def serving(engine: FakeEngine, keys: Path | None = None) -> Iterator[str]:
    """URL of a service over real HTTP."""
    served = fake_app(engine, api_keys_folder=keys)
    server = uvicorn.Server(uvicorn.Config(served, port=0, log_level="critical", lifespan="off"))
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        # A client that comes before the server waits, instead of being turned away.
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def silent_url() -> Iterator[str]:
    """A URL at which nothing answers, and no other program begins to."""
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
