"""The blocks about to be computed: equal prefixes that arrive together are computed once."""


class PendingBlocks:
    """Keys of blocks (keys.py) that a running sequence will have computed soon.

    A sequence whose next block is pending may wait for it instead of computing it too. A waiting
    sequence owns no pending block, so no two sequences can wait for each other. A block is pending
    until it is sealed (`complete`) or its owner can no longer compute it (`cancel`).
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, str] = {}
        self._keys: dict[str, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, key: bytes, owner: str) -> None:
        """Note that the sequence `owner` is about to compute the block; the first owner stays."""
        if self._owners.setdefault(key, owner) == owner:
            self._keys.setdefault(owner, set()).add(key)

    def owner_of(self, key: bytes) -> str | None:
        """Return the id of the sequence that computes the block; None: it is not pending."""
        return self._owners.get(key)

    def complete(self, key: bytes) -> None:
        """Drop a block that was sealed, by its owner or by another sequence."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        keys = self._keys[owner]
        keys.discard(key)
        if not keys:
            del self._keys[owner]

    def cancel(self, owner: str) -> None:
        """Drop all blocks of a sequence that ended, was preempted or has its prompt computed."""
        for key in self._keys.pop(owner, ()):
            del self._owners[key]

    def clear(self) -> None:
        """Drop all: blocks are no longer cached by content, so none will be found."""
        self._owners.clear()
        self._keys.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError unless the maps of owners and of keys agree."""
        if {key: owner for owner, keys in self._keys.items() for key in keys} != self._owners:
            raise AssertionError("A pending block has no owner, or two; this is a bug.")
        if not all(self._keys.values()):
            raise AssertionError("An owner is listed without a pending block; this is a bug.")
