# SPDX-License-Identifier: Apache-2.0
"""Certificates of the TLS servers: an authority, a valid and an expired one.

They are made for one run and for loopback addresses only.
"""

import dataclasses
import datetime
import ipaddress
import pathlib
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# The name of the file with the certificate of the authority.
AUTHORITY = 'authority.pem'
_DAY = datetime.timedelta(days=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates:
    """The files of the certificates.

    :param valid: the certificate and the key of a server
    :param expired: likewise; it expired yesterday
    """

    valid: pathlib.Path
    expired: pathlib.Path


def make(folder: pathlib.Path, addresses: Iterable[str]) -> Certificates:
    """Write new certificates of servers with these IP addresses.

    Clients must trust the one in the file `AUTHORITY`.
    """
    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = _name('authority of a test cloud')
    authority = _sign(
        _builder(issuer, issuer, key, now + _DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        ),
        key,
    )
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
    )

    def issue(name: str, ends: datetime.datetime) -> pathlib.Path:
        own_key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(issuer, _name(name), own_key, ends)
        signed = _sign(builder.add_extension(names, critical=False), key)
        return _write(folder / f'{name}.pem', signed + _private(own_key))

    _write(folder / AUTHORITY, authority)
    return Certificates(
        issue('valid', now + _DAY),
        issue('expired', now - _DAY),
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - 2 * _DAY)
        .not_valid_after(ends)
    )


def _sign(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
) -> bytes:
    signed = builder.sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: pathlib.Path, text: bytes) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(text)
    return path
