"""How long tests wait: until the thing happens, or can no longer happen.

The bound is for what hangs, not for what is slow: no test is judged by it.
"""

from typing import Final

HANG_S: Final = 600.0
"""Seconds after which what is waited for hangs."""
