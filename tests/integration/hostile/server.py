"""`python -m tests.integration.hostile.server`: the real HTTP application over the real engine.

In a process of its own, as a replica is, so that what it suffers can be seen from outside. It
prints its port, and ends when its standard input does.
"""

import signal
import socket
import sys
import threading
import time
from contextlib import closing

import uvicorn

from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.build import build_engine
from tandem_serve.http.app import build_app
from tandem_serve.http.settings import HttpSettings
from tests.integration.hostile.attack import MAX_LINK_NUM, MAX_SEQ_LEN, MODEL
from tests.tiny import TINY

CONFIG = EngineConfig(
    model_path=str(TINY),
    dtype="float32",  # Tokens do not depend on what else is in the batch.
    max_seq_len=MAX_SEQ_LEN,
    num_kv_blocks=1024,
    num_threads=1,
    schedule=ScheduleConfig(
        template_type="Mix",
        cache_block_size=16,
        max_batch_size=24,  # Half of the slots: there is a queue.
        max_iter_times=MAX_SEQ_LEN,
        split_fuse=SplitFuseConfig(split_chunk_tokens=256, split_start_batch_size=0),
    ),
)


def main() -> None:
    """Serve until standard input ends."""
    engine = build_engine(CONFIG, report=lambda _: None)
    settings = HttpSettings(model_name=MODEL, created_s=int(time.time()), max_link_num=MAX_LINK_NUM)
    config = uvicorn.Config(
        build_app(settings, lambda: engine), log_level="error", lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0), backlog=1024)) as listener:
        print(listener.getsockname()[1], flush=True)  # noqa: T201
        threading.Thread(target=_end_with_input, args=(server,)).start()
        server.run(sockets=[listener])


def _end_with_input(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.handle_exit(signal.SIGINT, None)


if __name__ == "__main__":
    main()
