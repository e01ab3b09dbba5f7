"""One HTTP/1.1 response, taken apart as it comes. Pure: bytes in, body out.

A general HTTP client spends more on one event than a small model on one token; the load
generator shares the cores with the server that it measures, so it reads with this instead.
"""

from typing import Final

_END_OF_LINE: Final = b"\r\n"
_END_OF_HEAD: Final = b"\r\n\r\n"
_MAX_HEAD: Final = 65536


class NotHttp(Exception):
    """The received bytes are not an HTTP/1.1 response."""


class ResponseParser:
    """Takes the bytes of one response and gives those of its body."""

    def __init__(self) -> None:
        self.status = 0
        """Status code; 0 until the head has come."""
        self.is_complete = False
        self.keeps_alive = True
        """The connection can be used again after this response."""
        self._buffer = b""
        self._is_chunked = False
        self._num_left: int | None = None
        """Bytes of a body that is not chunked; None: up to the end of the connection."""

    def feed(self, data: bytes) -> bytes:
        """The part of the body that `data` completes.

        Raises:
            NotHttp: it cannot be understood.
        """
        self._buffer += data
        if self.status == 0 and not self._read_head():
            return b""
        if self._is_chunked:
            return self._read_chunks()
        return self._read_plain()

    def end_of_connection(self) -> None:
        """Note that nothing more comes; without this some bodies have no end."""
        if self.status and not self._is_chunked and self._num_left is None:
            self.is_complete = True

    def _read_head(self) -> bool:
        head, end, rest = self._buffer.partition(_END_OF_HEAD)
        if not end:
            if len(head) > _MAX_HEAD or not b"HTTP/1.".startswith(head[:7]):
                raise NotHttp(f"The server does not speak HTTP/1.1; it sent {head[:40]!r}.")
            return False
        status_line, *lines = head.split(_END_OF_LINE)
        parts = status_line.split(maxsplit=2)
        if not status_line.startswith(b"HTTP/1.") or not parts[1:] or not parts[1].isdigit():
            raise NotHttp(f"The server does not speak HTTP/1.1; it sent {status_line[:40]!r}.")
        self._use_headers(dict(map(_split_header, lines)))
        self.keeps_alive &= status_line.startswith(b"HTTP/1.1")
        self.status = int(parts[1])
        self._buffer = rest
        return True

    def _use_headers(self, headers: dict[bytes, bytes]) -> None:
        self._is_chunked = headers.get(b"transfer-encoding", b"").lower().endswith(b"chunked")
        length = headers.get(b"content-length")
        if length is not None and not length.isdigit():
            raise NotHttp(f"The server sent the content-length {length!r}.")
        self._num_left = None if length is None else int(length)
        has_end = self._is_chunked or length is not None
        self.keeps_alive = has_end and headers.get(b"connection", b"").lower() != b"close"

    def _read_plain(self) -> bytes:
        body, self._buffer = self._buffer, b""
        if self._num_left is not None:
            self._num_left -= len(body)
            self.is_complete = self._num_left <= 0
        return body

    def _read_chunks(self) -> bytes:
        buffer, pieces, at = self._buffer, [], 0
        while (line_end := buffer.find(_END_OF_LINE, at)) >= 0:
            size = _chunk_size(buffer[at:line_end])
            if size == 0:
                # Trailers or none: an empty line ends both.
                self.is_complete = buffer.find(_END_OF_HEAD, line_end) >= 0
                break
            begin = line_end + 2
            if len(buffer) < begin + size + 2:
                break
            pieces.append(buffer[begin : begin + size])
            at = begin + size + 2
        self._buffer = buffer[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _split_header(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name.strip().lower(), value.strip()


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise NotHttp(f"The server sent {line[:40]!r} for the size of a chunk.") from None
