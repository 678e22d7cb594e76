# SPDX-License-Identifier: Apache-2.0
"""Servers with a password, and servers with TLS, on loopback ports."""

import base64
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import requests

from tests.contract.coordination import certificates, servers
from tests.free_ports import find_free_ports

USER = 'agents'
# No part of it is in anything else that is logged.
SECRET = 'xq7sesame9'
# ZooKeeper's TLS needs it; Debian's ZooKeeper does not name it.
NETTY_JAR = pathlib.Path('/usr/share/java/netty-codec.jar')


@dataclasses.dataclass(frozen=True, slots=True)
class Secured:
    """A running server, and the URL of one who may use it.

    :param url: with SECRET, or with the files of certificates
    :param wrong_url: with another password, or without a certificate
    """

    server: servers.Server
    url: str
    wrong_url: str


def _start(folder: pathlib.Path, scheme: str, command: Any) -> servers.Server:
    server = servers.Server(servers.Kind(scheme, command, _always), folder)
    server.start()
    return server


def _always() -> bool:
    return True


def etcd_with_password(folder: pathlib.Path) -> Secured:
    """Etcd whose tokens end after two seconds without a request."""

    def command(folder: pathlib.Path, port: int) -> Sequence[str]:
        plain = servers.KINDS['etcd'].command(folder, port)
        return (*plain, '--auth-token-ttl=2')

    server = _start(folder, 'etcd3+http', command)
    _add_etcd_user(server.place)
    return Secured(
        server,
        f'etcd3+http://{USER}:{SECRET}@{server.place}',
        f'etcd3+http://{USER}:{SECRET}wrong@{server.place}',
    )


def _add_etcd_user(place: str) -> None:
    """Add a user with the rights that the manual names; then demand one."""

    def call(path: str, **body: Any) -> None:
        url = f'http://{place}/v3/auth/{path}'
        requests.post(url, json=body, timeout=5).raise_for_status()

    for user in ('root', USER):
        call('user/add', name=user, password=SECRET)
        call('role/add', name=user)
        call('user/grant', user=user, role=user)
    for prefix in (b'tooz/groups/', b'/tooz/locks'):
        call('role/grant', name=USER, perm=_readwrite(prefix))
    call('enable')


def _readwrite(prefix: bytes) -> dict[str, str]:
    end = prefix[:-1] + bytes([prefix[-1] + 1])
    return {
        'permType': 'READWRITE',
        'key': base64.b64encode(prefix).decode(),
        'range_end': base64.b64encode(end).decode(),
    }


def redis_with_password(folder: pathlib.Path) -> Secured:
    """Redis with one user, who may use tooz's keys only."""
    rules = f'user {USER} on >{SECRET} ~_tooz* +@all -@dangerous'

    def command(folder: pathlib.Path, port: int) -> Sequence[str]:
        plain = servers.KINDS['redis'].command(folder, port)
        config = folder / 'redis.conf'
        config.write_text(f'user default off\n{rules} +info\n')
        return (plain[0], str(config), *plain[1:])

    server = _start(folder, 'redis', command)
    return Secured(
        server,
        f'redis://{USER}:{SECRET}@{server.place}',
        f'redis://{USER}:{SECRET}wrong@{server.place}',
    )


def zookeeper_with_password(folder: pathlib.Path) -> Secured:
    """ZooKeeper takes any password; it protects the entries of its user."""
    server = _start(folder, 'zookeeper', servers.KINDS['zookeeper'].command)
    place = f'{server.place}?namespace=ironic-compute'
    return Secured(
        server,
        f'zookeeper://{USER}:{SECRET}@{place}',
        f'zookeeper://{USER}:{SECRET}wrong@{place}',
    )


def etcd_with_tls(folder: pathlib.Path) -> Secured:
    """Etcd that demands a certificate of its clients."""
    made = certificates.make(folder)

    def command(folder: pathlib.Path, port: int) -> Sequence[str]:
        plain = servers.KINDS['etcd'].command(folder, port)
        url = f'http://127.0.0.1:{port}'
        return (
            *(
                part.replace(url, url.replace('http', 'https'))
                for part in plain
            ),
            *_etcd_tls(made),
        )

    server = _start(folder, 'etcd3+https', command)
    return Secured(
        server,
        _etcd_tls_url(server.place, made),
        f'{server.url}?ca_cert={made.authority}',
    )


def etcd_with_tls_on_one_port(
    folder: pathlib.Path,
) -> tuple[servers.Server, str]:
    """Etcd with a port without TLS, and one that demands a certificate.

    :returns: the server, whose own URL is without TLS, and the other URL
    """
    made, tls_port = certificates.make(folder), find_free_ports(1)

    def command(folder: pathlib.Path, port: int) -> Sequence[str]:
        plain = servers.KINDS['etcd'].command(folder, port)
        urls = f'http://127.0.0.1:{port},https://127.0.0.1:{tls_port}'
        return (
            *plain,
            f'--listen-client-urls={urls}',
            f'--advertise-client-urls={urls}',
            *_etcd_tls(made),
        )

    server = _start(folder, 'etcd3+http', command)
    return server, _etcd_tls_url(f'127.0.0.1:{tls_port}', made)


def _etcd_tls(made: certificates.Certificates) -> Sequence[str]:
    return (
        '--client-cert-auth',
        f'--trusted-ca-file={made.authority}',
        f'--cert-file={made.certificate}',
        f'--key-file={made.key}',
    )


def _etcd_tls_url(place: str, made: certificates.Certificates) -> str:
    return (
        f'etcd3+https://{place}?ca_cert={made.authority}'
        f'&cert_cert={made.certificate}&cert_key={made.key}'
    )


def redis_with_tls(folder: pathlib.Path) -> Secured:
    """Redis that demands a certificate of its clients."""
    made = certificates.make(folder)

    def command(folder: pathlib.Path, port: int) -> Sequence[str]:
        plain = servers.KINDS['redis'].command(folder, port)
        return (
            *plain,
            *('--port', '0', '--tls-port', str(port)),
            *('--tls-cert-file', str(made.certificate)),
            *('--tls-key-file', str(made.key)),
            *('--tls-ca-cert-file', str(made.authority)),
        )

    server = _start(folder, 'redis', command)
    ours = f'ssl_certfile={made.certificate}&ssl_keyfile={made.key}'
    theirs = f'ssl=true&ssl_ca_certs={made.authority}'
    return Secured(
        server, f'{server.url}?{theirs}&{ours}', f'{server.url}?{theirs}'
    )


def zookeeper_with_tls(folder: pathlib.Path) -> Secured:
    """ZooKeeper that demands a certificate of its clients."""
    made = certificates.make(folder)

    def command(folder: pathlib.Path, port: int) -> Sequence[str]:
        servers.KINDS['zookeeper'].command(folder, port)
        config = folder / 'zoo.cfg'
        plain = config.read_text().replace('clientPort', 'secureClientPort')
        config.write_text(
            f'{plain}serverCnxnFactory='
            'org.apache.zookeeper.server.NettyServerCnxnFactory\n'
            'ssl.hostnameVerification=false\n'
            f'ssl.keyStore.location={made.both}\nssl.keyStore.type=PEM\n'
            f'ssl.trustStore.location={made.authority}\n'
            'ssl.trustStore.type=PEM\n'
        )
        return servers.zookeeper_command(folder, NETTY_JAR)

    server = _start(folder, 'zookeeper', command)
    ours = f'certfile={made.certificate}&keyfile={made.key}'
    theirs = f'use_ssl=true&ca={made.authority}'
    return Secured(
        server, f'{server.url}?{theirs}&{ours}', f'{server.url}?{theirs}'
    )
