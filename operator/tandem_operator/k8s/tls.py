"""TLS of a connection, from the files that the official client's loaders name."""

import ssl
from typing import Protocol


class TlsSettings(Protocol):
    """The fields of the client's configuration, synchronous or not."""

    ssl_ca_cert: str | None
    cert_file: str | None
    key_file: str | None
    verify_ssl: bool


def take_tls(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS of `settings`, and clear the names of its files there.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is no certificate.
    """
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    # Go, and so kubectl, trusts authorities without some extensions.
    tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not settings.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        tls.load_cert_chain(settings.cert_file, settings.key_file)
    settings.ssl_ca_cert = settings.cert_file = settings.key_file = None
    return tls
