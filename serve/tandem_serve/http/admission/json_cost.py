"""Cost of parsing a JSON document, counted while its bytes come; pure.

A parser holds Python's global lock from the first byte to the last, and every stream stands still
meanwhile. Long strings are parsed at a gigabyte a second; values and brackets are not: a megabyte
of `[[[…]]]` takes a quarter of a second and thirty times its size.
"""

from typing import Final

CONTAINER_COST: Final = 10
"""Cost of an object or a list, as a multiple of a number's (measured: 0.5 µs, 50 ns)."""
MEMBER_COST: Final = 7
"""Cost of the name of an object's member."""


class JsonCostCounter:
    """Sums up the cost of a document, byte by byte, without parsing it.

    Commas, brackets and colons count where they stand outside of strings. A document that is not
    JSON may be counted wrongly, but not one byte before the position where a parser stops.
    """

    def __init__(self) -> None:
        self.cost = 0
        self._is_in_string = False
        self._is_escaped = False

    def feed(self, piece: bytes | bytearray | memoryview) -> None:
        """Count the next piece."""
        text = bytes(piece)
        if self._is_escaped and text:
            text = text[1:]
            self._is_escaped = False
        if b"\\" in text:
            # Pairs go first: what is left before a quote escapes it.
            text = text.replace(b"\\\\", b"")
            self._is_escaped = text.endswith(b"\\")
            text = text.replace(b'\\"', b"")
        parts = text.split(b'"')
        outside = b"".join(parts[self._is_in_string :: 2])
        self._is_in_string ^= len(parts) % 2 == 0
        self.cost += cost_upper_bound(outside)


def cost_upper_bound(piece: bytes) -> int:
    """Cost of `piece` if no byte of it is inside a string; never less than its cost."""
    num_containers = piece.count(b"[") + piece.count(b"{")
    return piece.count(b",") + MEMBER_COST * piece.count(b":") + CONTAINER_COST * num_containers
