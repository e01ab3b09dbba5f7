"""Stores of Ray's control plane that cannot be reached."""

from collections.abc import Iterator

from tests.unit.operator.crd.forms import STORE, Bad, wrong_value

_GOOD = "redis.storage.svc:6379"


def bad_stores() -> Iterator[Bad]:
    """One for every rule, and for every way to write an address that is none."""
    for address in (
        "redis",
        "redis:",
        "redis:0",
        "redis:65536",
        "rediss://redis:6379",
        "http://redis:6379",
        "redis://user:password@redis:6379",
        "redis:6379/0",
        "one:6379,two:6379",
        "-redis:6379",
        "redis..svc:6379",
    ):
        yield wrong_value(
            f"{STORE}.redisAddress", address, f"'{address}' is not the address of a Redis; write"
        )
    yield Bad(
        "a store without an address",
        {STORE: {}},
        f"{STORE}.redisAddress",
        "Required value",
        "is missing",
    )
    for credential in ("redisUsername", "redisPassword"):
        yield from _bad_credentials(credential)


def _bad_credentials(credential: str) -> Iterator[Bad]:
    at = f"{STORE}.{credential}.valueFrom.secretKeyRef"
    for field, value, words in (
        ("name", "Redis", "'Redis' is not the name of an object"),
        ("key", "pass word", "'pass word' is not a key of a Secret"),
    ):
        reference = {"name": "redis", "key": "password", field: value}
        yield Bad(
            f"a {field} of {credential} that cannot be",
            {f"{STORE}.redisAddress": _GOOD, at: reference},
            f"{at}.{field}",
            words,
        )
    yield Bad(
        f"{credential} without a reference",
        {f"{STORE}.redisAddress": _GOOD, f"{STORE}.{credential}": {}},
        f"{STORE}.{credential}.valueFrom",
        "Required value",
        "is missing",
    )
