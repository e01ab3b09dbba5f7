"""The key of a full KV block: the hash of its tokens and of all tokens before them.

The KV of a token depends on every token before it, so a block is the same as another one only if
everything up to its end is. Each key is therefore made of the key before it and the block's own
tokens, as in vLLM's automatic prefix caching.

The hash is a cryptographic one (BLAKE2b, RFC 7693). A collision would give a sequence the KV of
another prompt, and so show one tenant what another one wrote; with a hash that is merely fast, a
tenant could make collisions on purpose. 128 bits leave a chance of about 10⁻¹⁵ that two of 10¹²
blocks meet by accident.

Equal tokens have equal keys in every process and on every machine: a token is hashed as eight
bytes, lowest first.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from struct import pack
from typing import Final

KEY_BYTES: Final = 16
_TOKEN_BYTES: Final = 8
# Sets roots apart from blocks: no salt, whatever its bytes, has the key of some block.
_ROOT: Final = b"tandem root"


def root_key(salt: str) -> bytes:
    """The key before the first block: requests of different salts (`cache_salt`) share nothing.

    A tenant that measures its own TTFT can tell if another one sent the same prompt before;
    with a salt of its own it learns that of its own requests alone.
    """
    # JSON can carry half a surrogate pair, which has no UTF-8 of its own.
    content = salt.encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=KEY_BYTES, person=_ROOT).digest()


def next_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of the block of `tokens` that follows the block (or root) of key `parent`."""
    return _key(_checked(parent), _bytes(tokens))


def block_keys(
    tokens: Sequence[int], block_size: int, *, salt: str = "", parent: bytes = b""
) -> bytes:
    """The keys of all full blocks of `tokens`, one after the other, KEY_BYTES each.

    One object, not a list: a request keeps its keys as long as it lives, and a bytes object for
    each would be four times as large.

    Args:
        tokens: Token ids; those after the last full block do not count.
        block_size: Tokens in a block (MindIE cacheBlockSize).
        salt: Goes into the root; of no effect where a parent is given, whose salt is in its key.
        parent: Key of the block before `tokens`; empty: they begin the sequence.
    """
    key = _checked(parent) if parent else root_key(salt)
    content = _bytes(tokens)
    width = block_size * _TOKEN_BYTES
    keys: list[bytes] = []
    for end in range(width, len(content) + 1, width):
        key = _key(key, content[end - width : end])
        keys.append(key)
    return b"".join(keys)


def split_keys(keys: bytes) -> Iterator[bytes]:
    """The single keys of what `block_keys` gave, as `BlockPool.find` takes them.

    One at a time: mostly the first ones tell where the search ends.
    """
    return (keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES))


def last_key(keys: bytes, *, salt: str) -> bytes:
    """The parent of the block that comes after those of `keys`: the last key, or the root."""
    return keys[-KEY_BYTES:] or root_key(salt)


def _key(parent: bytes, content: bytes) -> bytes:
    return blake2b(parent + content, digest_size=KEY_BYTES).digest()


def _bytes(tokens: Sequence[int]) -> bytes:
    # struct takes half the time that array("q", tokens) does.
    return pack(f"<{len(tokens)}q", *tokens)


def _checked(parent: bytes) -> bytes:
    """Return a valid parent: an empty one would leave the salt out of all keys after it."""
    if len(parent) != KEY_BYTES:
        raise AssertionError(
            f"The parent of a block key has {len(parent)} bytes, not {KEY_BYTES}; this is a bug."
        )
    return parent
