"""`python -m tests.integration.hostile.reader PORT`: a caller who streams, and notices everything.

On the line "begin" it asks the same again and again, and says "running" when the first chunk has
come. On the line "end" it reads the stream that runs to its end, and prints what it saw of each, as
JSON: whether it ended well, a digest of its text, the number of its chunks, and the largest time
between two of them. In a process of its own, since an attacker who computes would hold up a thread
beside him.
"""

import hashlib
import http.client
import json
import sys
import threading
import time
from typing import Any

from tests.integration.hostile.attack import MODEL

BODY = {
    "model": MODEL,
    "prompt": "<|user|>Reverse: abcd<|end|><|assistant|>",
    "max_tokens": 100,
    "temperature": 0,
    "ignore_eos": True,
    "skip_special_tokens": False,  # Each token shows.
    "stream": True,
}


def main() -> None:
    """Read streams from each "begin" to each "end", until standard input ends."""
    must_end = threading.Event()
    while sys.stdin.readline():
        must_end.clear()
        threading.Thread(target=_await_line, args=(must_end,)).start()
        streams = [read(int(sys.argv[1]), says_so=True)]
        while not must_end.is_set():
            streams.append(read(int(sys.argv[1])))
        print(json.dumps(streams), flush=True)  # noqa: T201


def _await_line(then: threading.Event) -> None:
    sys.stdin.readline()
    then.set()


def read(port: int, *, says_so: bool = False) -> dict[str, Any]:
    """Read one stream to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    head = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(BODY), head)
    response = connection.getresponse()
    text, num_chunks, gap_s, last_s, line = "", 0, 0.0, 0.0, b""
    while line.strip() != b"data: [DONE]" and (line := response.readline()):
        if not line.startswith(b"data: {"):
            continue
        now_s = time.perf_counter()
        gap_s = max(gap_s, now_s - last_s) if num_chunks else 0.0
        last_s, num_chunks = now_s, num_chunks + 1
        text += "".join(choice["text"] for choice in json.loads(line[6:]).get("choices", []))
        if says_so and num_chunks == 1:
            print("running", flush=True)  # noqa: T201
    connection.close()
    return {
        "has_ended": bool(line),
        "text": hashlib.sha256(text.encode()).hexdigest(),
        "num_chunks": num_chunks,
        "gap_ms": gap_s * 1000,
    }


if __name__ == "__main__":
    main()
