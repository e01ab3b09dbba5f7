"""Who is about to compute which block: equal prefixes that arrive together are computed once."""


class Promises:
    """Keys of blocks (keys.py) that a running sequence will have computed soon.

    A sequence whose next block is promised may wait for it instead of computing it too. One that
    waits makes no promises, so no two sequences can wait for each other. A promise ends when the
    block is sealed (`keep`), or when the sequence that made it can no longer keep it (`retract`).
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, str] = {}
        self._keys: dict[str, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def promise(self, key: bytes, owner: str) -> None:
        """Note that the sequence `owner` is about to compute the block; the first one stays."""
        if self._owners.setdefault(key, owner) == owner:
            self._keys.setdefault(owner, set()).add(key)

    def promised_to(self, key: bytes) -> str | None:
        """The id of the sequence that computes the block; None: nobody does."""
        return self._owners.get(key)

    def keep(self, key: bytes) -> None:
        """End the promise of a block that was sealed, whoever computed it."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        keys = self._keys[owner]
        keys.discard(key)
        if not keys:
            del self._keys[owner]

    def retract(self, owner: str) -> None:
        """End all promises of a sequence that ended, was pre-empted or has its prompt computed."""
        for key in self._keys.pop(owner, ()):
            del self._owners[key]

    def clear(self) -> None:
        """End all promises: blocks are no longer kept for their content, so none will be found."""
        self._owners.clear()
        self._keys.clear()

    def check_integrity(self) -> None:
        """Raise AssertionError unless owners and keys know each other."""
        if {key: owner for owner, keys in self._keys.items() for key in keys} != self._owners:
            raise AssertionError("A promise has no owner, or two; this is a bug.")
        if not all(self._keys.values()):
            raise AssertionError("A sequence is kept that promises nothing; this is a bug.")
