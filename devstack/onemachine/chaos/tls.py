# SPDX-License-Identifier: Apache-2.0
"""Puts TLS in front of the services that hosts reach through TCP proxies.

HAProxy ends TLS twice for each listener of a host: once with a valid
certificate, and once with one that has expired. The services themselves go on
to speak plain HTTP, AMQP and etcd's API.
"""

import pathlib
from collections.abc import Mapping

from onemachine import packages
from onemachine.chaos import certificates
from onemachine.chaos.tcp_proxy import Place, Upstream
from onemachine.control import Cloud
from onemachine.processes import answers
from onemachine.progress import wait_until

_PROCESS = 'chaos-tls'
_HAPROXY = '/usr/sbin/haproxy'
# The last byte of the addresses is the host's, as it is of its TCP proxies.
_VALID, _EXPIRED = '127.0.3.', '127.0.4.'
_HEAD = """\
global
    maxconn 4000
defaults
    timeout connect 5s
    timeout client 1h
    timeout server 1h
"""


def install() -> None:
    """Install HAProxy, if it is missing."""
    packages.ensure_debian(programs={_HAPROXY: 'haproxy'})


class TlsServers:
    """The process that ends TLS in front of each service.

    :param folder: for its configuration and the certificates
    """

    def __init__(self, cloud: Cloud, folder: pathlib.Path) -> None:
        self._cloud = cloud
        self._folder = folder

    @property
    def authority(self) -> pathlib.Path:
        """The file of the certificate authority that clients must trust."""
        return self._folder / certificates.AUTHORITY

    def start(
        self, places: Mapping[str, tuple[Place, Place]], http: set[str]
    ) -> dict[str, tuple[Place, Upstream]]:
        """Start the process, and wait until it listens.

        :param places: name of a listener -> where it listens, and its service
        :param http: the names of those whose services speak HTTP
        :returns: the same, with TLS before the services
        """
        config = self._write(places, http)
        self.stop()
        self._cloud.processes.start(
            _PROCESS, [_HAPROXY, '-db', '-f', str(config)]
        )
        for at, _ in places.values():
            self._await(*_beside(_VALID, at))
        return {
            name: (at, Upstream(_beside(_VALID, at), _beside(_EXPIRED, at)))
            for name, (at, _) in places.items()
        }

    def _write(
        self, places: Mapping[str, tuple[Place, Place]], http: set[str]
    ) -> pathlib.Path:
        """Make certificates, and write the configuration that names them."""
        files = certificates.make(
            self._folder, {at[0] for at, _ in places.values()}
        )
        sections = [
            _section(_beside(network, at), file, service, name in http)
            for name, (at, service) in places.items()
            for network, file in (
                (_VALID, files.valid),
                (_EXPIRED, files.expired),
            )
        ]
        config = self._folder / 'haproxy.cfg'
        config.write_text('\n'.join([_HEAD, *sections]))
        return config

    def _await(self, address: str, port: int) -> None:
        wait_until(
            f'TLS on {address}:{port}',
            lambda: (
                self._cloud.processes.require(_PROCESS)
                and answers(port, address)
            ),
            30,
        )

    def stop(self) -> None:
        """End the process."""
        self._cloud.processes.stop(_PROCESS)


def _beside(network: str, at: Place) -> Place:
    address, port = at
    return network + address.rpartition('.')[2], port


def _section(
    at: Place, certificate: pathlib.Path, service: Place, is_http: bool
) -> str:
    """Return the part of HAProxy's configuration for one listener.

    Keystone and Ironic name themselves in their answers, so they must know
    that they are reached by TLS.
    """
    lines = [
        f'listen {at[0]}:{at[1]}',
        f'    mode {"http" if is_http else "tcp"}',
        f'    bind {at[0]}:{at[1]} ssl crt {certificate}',
        f'    server service {service[0]}:{service[1]}',
    ]
    if is_http:
        lines.append('    http-request set-header X-Forwarded-Proto https')
    return '\n'.join([*lines, ''])
