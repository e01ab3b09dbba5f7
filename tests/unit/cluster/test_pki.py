"""Certificates say what Kubernetes reads out of them."""

from ipaddress import IPv4Address

from cryptography import x509
from cryptography.x509.oid import NameOID

from tools.cluster.pki import Authority, signing_key


def read(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def test_a_client_is_a_user_in_groups() -> None:
    pair = Authority("test").sign("system:node:node0", groups=("system:nodes",))

    subject = read(pair.certificate).subject
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [name.value for name in names] == ["system:node:node0"]
    assert [group.value for group in groups] == ["system:nodes"]


def test_a_server_is_known_by_its_addresses_and_names() -> None:
    pair = Authority("test").sign(
        "x", addresses=(IPv4Address("198.18.1.1"),), hosts=("kubernetes",)
    )

    extension = read(pair.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    names = extension.value
    assert names.get_values_for_type(x509.IPAddress) == [IPv4Address("198.18.1.1")]
    assert names.get_values_for_type(x509.DNSName) == ["kubernetes"]


def test_what_the_authority_signs_it_has_signed() -> None:
    authority = Authority("test")

    pair = authority.sign("x")

    read(pair.certificate).verify_directly_issued_by(read(authority.certificate))


def test_the_key_for_tokens_comes_as_a_pair() -> None:
    private, public = signing_key()

    assert b"PRIVATE KEY" in private
    assert b"PUBLIC KEY" in public
