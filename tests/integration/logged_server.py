"""`python -m tests.integration.logged_server KEYS`: a real server that logs all it can, to stderr.

As a replica is but without Ray, with every logger at DEBUG. It prints its port, ends when its
standard input does, and fails where a request says so: in a step of the engine, as it takes a
request, or while it tokenizes.
"""

import logging
import signal
import socket
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import uvicorn

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_serve.http.app import build_app
from tandem_serve.http.settings import HttpSettings
from tests.tiny import TINY

MODEL: Final = "tandem-tiny"
FAULTY_STEP: Final = 101
FAULTY_START: Final = 102
FAULTY_TEXT: Final = "<faulty>"
CONFIG: Final = EngineConfig(
    model_path=str(TINY),
    dtype="float32",
    max_seq_len=512,
    num_kv_blocks=128,
    num_threads=1,
    schedule=ScheduleConfig(template_type="Mix", cache_block_size=16),
)


def main(keys: Path) -> None:
    """Serve until standard input ends."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr, format="%(name)s %(message)s")
    engine = build_engine(CONFIG, model_name=MODEL)
    _break(engine)
    settings = HttpSettings(model_name=MODEL, created_s=int(time.time()), api_keys_folder=keys)
    app = build_app(settings, lambda: engine)
    config = uvicorn.Config(
        app, log_config=None, log_level="debug", access_log=False, lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listener:
        print(listener.getsockname()[1], flush=True)  # noqa: T201
        threading.Thread(target=_end_with_input, args=(server,)).start()
        server.run(sockets=[listener])
    engine._loop.stop()
    engine._loop.join()


def _break(engine: AsyncEngine) -> None:
    """Let the engine fail where requests ask for it, and the tokenizer quote what it got."""
    inner: Any = engine._loop._engine
    compute, add, encode = inner._runner._compute_step, inner.add, engine.codec.encode_chat
    faulty: set[str] = set()

    def failing_compute(handle: Any) -> None:
        if faulty.intersection(handle.step.sequence_ids):
            raise RuntimeError("The device has failed.")
        compute(handle)

    def failing_add(request: Any) -> None:
        if request.sampling.max_tokens == FAULTY_START:
            raise RuntimeError("The request could not be added.")
        if request.sampling.max_tokens == FAULTY_STEP:
            faulty.update(request.sequences)
        add(request)

    def failing_encode(messages: Any, **options: Any) -> list[int]:
        if FAULTY_TEXT in str(messages):
            raise ValueError(f"cannot tokenize {messages!r}")
        return encode(messages, **options)

    inner._runner._compute_step, inner.add = failing_compute, failing_add
    engine.codec.encode_chat = failing_encode  # type: ignore[method-assign]


def _end_with_input(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.handle_exit(signal.SIGINT, None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
