"""A worker's wait for its Ray head: for one that answers, not for a port that is open."""

import os
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from tandem_operator.render import await_head
from tests.patience import HANG_S

# HTTP/2's first frame of a server, with no setting in it.
_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class StoppedHead(socketserver.ThreadingTCPServer):
    """A head whose connections the kernel accepts; it speaks once it `goes_on`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.goes_on = threading.Event()
        self.connections = threading.Semaphore(0)


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, StoppedHead)
        self.server.connections.release()
        self.server.goes_on.wait()
        self.request.sendall(_SETTINGS)


class ClosingHead(socketserver.TCPServer):
    """Closes each connection without a word, as a proxy in front of nothing does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)


@contextmanager
def running(head: socketserver.TCPServer) -> Iterator[int]:
    """The port of `head`, which serves."""
    thread = threading.Thread(target=head.serve_forever)
    with head:
        thread.start()
        try:
            yield head.server_address[1]
        finally:
            head.shutdown()
            thread.join()


@contextmanager
def waiting(port: int) -> Iterator[subprocess.Popen[str]]:
    """A pod's init container that waits."""
    with subprocess.Popen(
        ["/bin/bash", "-c", await_head.SCRIPT, str(port)],
        env={**os.environ, "FQ_RAY_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_a_head_that_answers_is_enough() -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with waiting(port) as process:
            log, _ = process.communicate(timeout=HANG_S)
    finally:
        server.stop(None)

    assert process.returncode == 0
    assert log == f"the Ray head answers at 127.0.0.1:{port}\n"


def test_a_head_that_hangs_is_waited_for() -> None:
    head = StoppedHead()
    with running(head) as port, waiting(port) as process:
        for _ in range(2):  # the first look has ended
            assert head.connections.acquire(timeout=HANG_S)
        assert process.poll() is None
        head.goes_on.set()
        log, _ = process.communicate(timeout=HANG_S)

    assert process.returncode == 0
    assert log.startswith(f"waiting for the Ray head at 127.0.0.1:{port}")
    assert log.endswith(f"the Ray head answers at 127.0.0.1:{port}\n")


def test_a_connection_that_closes_is_no_answer() -> None:
    with running(ClosingHead()) as port, waiting(port) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("waiting")
