# SPDX-License-Identifier: Apache-2.0
"""A certificate of 127.0.0.1, and its authority, for one test."""

import dataclasses
import datetime
import ipaddress
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = datetime.timedelta(days=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM.

    :param certificate: of a server, and of a client
    :param both: the certificate and its key
    """

    authority: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path
    both: pathlib.Path


def make(folder: pathlib.Path) -> Certificates:
    """Write the files."""
    authority_key, key = _new_key(), _new_key()
    name = _name('authority of a test')
    authority = (
        _builder(name, name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(authority_key, hashes.SHA256())
    )
    address = x509.IPAddress(ipaddress.ip_address('127.0.0.1'))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(name, _name('server of a test'), key)
        .add_extension(x509.SubjectAlternativeName([address]), False)
        .add_extension(x509.ExtendedKeyUsage(usages), False)
        .sign(authority_key, hashes.SHA256())
    )
    return Certificates(
        _write(folder / 'authority.pem', _public(authority)),
        _write(folder / 'certificate.pem', _public(certificate)),
        _write(folder / 'key.pem', _private(key)),
        _write(folder / 'both.pem', _private(key) + _public(certificate)),
    )


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    issuer: x509.Name, subject: x509.Name, key: rsa.RSAPrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _public(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: pathlib.Path, content: bytes) -> pathlib.Path:
    path.write_bytes(content)
    return path
