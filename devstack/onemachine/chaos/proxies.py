# SPDX-License-Identifier: Apache-2.0
"""Puts a TCP proxy between each host and each service, and cuts paths.

Each host uses a loopback address of its own, with the usual ports of the
services. Its configuration names this address in all URLs, and overrides the
endpoints that Keystone's catalog would name. With TLS, each proxy passes on
encrypted bytes, and the configuration names the certificate authority.
"""

import contextlib
import os
import pathlib
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onemachine import config, processes
from onemachine.chaos import proxy, tcp_proxy
from onemachine.chaos.cells import Service
from onemachine.chaos.tcp_proxy import Upstream, Way
from onemachine.chaos.tls import TlsServers
from onemachine.control import Cloud
from onemachine.layout import ADDRESS, Layout
from onemachine.progress import CloudError, wait_until

_PROCESS = 'chaos-tcp-proxy'
_CONDUCTOR = 'nova-conductor'
# Services behind the proxy that records the changes which hosts request.
_RECORDED = (Service.IRONIC, Service.PLACEMENT)
# Sections of nova.conf whose endpoint would be read from the catalog.
_ENDPOINTS = ('ironic', 'placement', 'neutron')
_NOT_HTTP = (Service.RABBIT, Service.COORDINATION)


def address(number: int) -> str:
    """Return the loopback address with the TCP proxies of the n-th host."""
    return f'127.0.2.{number + 1}'


def ports(layout: Layout, coordination: str) -> dict[Service, int]:
    """Return the ports of the services that hosts reach through proxies.

    :param coordination: the kind of the coordination backend; ``file`` has no
        port
    """
    names = {s: s.value for s in Service if s is not Service.CONDUCTOR}
    names[Service.COORDINATION] = {'memcached': 'coordination_memcached'}.get(
        coordination, coordination
    )
    if coordination == 'file':
        del names[Service.COORDINATION]
    return {service: layout.port(name) for service, name in names.items()}


class ProxiedConfig:
    """The configuration of hosts that reach services through proxies.

    :param authority: the file of the certificate authority; None: without TLS
    """

    def __init__(
        self,
        layout: Layout,
        hosts: Sequence[str],
        coordination: str,
        authority: pathlib.Path | None = None,
    ) -> None:
        self._layout = layout
        self._authority = authority
        self._addresses = {h: address(n) for n, h in enumerate(hosts)}
        self.ports = ports(layout, coordination)

    def rewrite(self, host: str, sections: config.Sections) -> dict[str, Any]:
        """Return sections in which each URL leads to the host's proxies."""
        if host not in self._addresses:
            return {name: dict(options) for name, options in sections.items()}
        rewritten = {
            name: {k: self._through(host, v) for k, v in options.items()}
            for name, options in sections.items()
        }
        for service in _ENDPOINTS:
            if service in rewritten:
                url = self._through(host, self._layout.url(service))
                rewritten[service]['endpoint_override'] = url
        if self._authority is not None:
            _trust(rewritten, str(self._authority))
        return rewritten

    def _through(self, host: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value

        def replace(found: re.Match[str]) -> str:
            scheme, port = found.groups(default='')
            if int(port) not in self.ports.values():
                return found[0]
            if self._authority is not None:
                scheme = scheme.replace('http:', 'https:')
            return f'{scheme}{self._addresses[host]}:{port}'

        place = rf'(http://)?{re.escape(ADDRESS)}:(\d+)'
        return re.sub(place, replace, value)

    def places(self) -> dict[str, tuple[tcp_proxy.Place, tcp_proxy.Place]]:
        """Return name of a listener -> where it listens, and its service."""
        return {
            listener(host, service): (
                (self._addresses[host], port),
                (
                    proxy.address(number) if service in _RECORDED else ADDRESS,
                    port,
                ),
            )
            for number, host in enumerate(self._addresses)
            for service, port in self.ports.items()
        }


def _trust(sections: dict[str, dict[str, Any]], authority: str) -> None:
    """Name the certificate authority wherever a URL leads through TLS."""
    for options in sections.values():
        if any('https://' in str(value) for value in options.values()):
            options['cafile'] = authority
    if 'DEFAULT' in sections and 'transport_url' in sections['DEFAULT']:
        sections.setdefault('oslo_messaging_rabbit', {}).update(
            ssl='true', ssl_ca_file=authority
        )
    if url := sections.get('coordination', {}).get('backend_url'):
        sections['coordination'] = {
            'backend_url': f'{url}?ca_cert={authority}'
        }


def listener(host: str, service: Service) -> str:
    """Return the name of the listener of a host and a service."""
    return f'{host}/{service}'


class Proxies:
    """The process with all TCP proxies, and cuts of paths.

    :param hosts: the first hosts of the stage, in their order
    :param tls: whether hosts reach the services by TLS
    """

    def __init__(
        self,
        cloud: Cloud,
        hosts: Sequence[str],
        seed: int,
        *,
        tls: bool = False,
    ) -> None:
        folder = cloud.layout.folder('chaos')
        self._cloud = cloud
        self._seed = seed
        self._tls = TlsServers(cloud, folder / 'tls') if tls else None
        self.config = ProxiedConfig(
            cloud.layout,
            hosts,
            cloud.coordination.kind,
            self._tls and self._tls.authority,
        )
        self._control = folder / 'tcp-proxy'

    def start(self) -> None:
        """Start the process, and wait until it takes orders."""
        argument = tcp_proxy.argument(
            self._control, self._upstreams(), self._seed
        )
        self._control.unlink(missing_ok=True)
        self._cloud.processes.stop(_PROCESS)
        self._cloud.processes.start(
            _PROCESS, [sys.executable, tcp_proxy.__file__, argument]
        )
        wait_until(
            'the TCP proxies',
            lambda: (
                self._cloud.processes.require(_PROCESS)
                and tcp_proxy.order(self._control, {})
            ),
            30,
        )

    def _upstreams(self) -> dict[str, tuple[tcp_proxy.Place, Upstream]]:
        places = self.config.places()
        if self._tls is None:
            return {n: (at, Upstream(to)) for n, (at, to) in places.items()}
        http = {n for n in places if not n.endswith(_NOT_HTTP)}
        return self._tls.start(places, http)

    def stop(self) -> None:
        """End the process, and that of TLS."""
        self._cloud.processes.stop(_PROCESS)
        if self._tls is not None:
            self._tls.stop()

    def counts(
        self, hosts: Sequence[str], service: Service
    ) -> tcp_proxy.Counts:
        """Return the counts of a service's proxies since the start."""
        counts = self._order({})
        names = [listener(host, service) for host in hosts]
        found = [counts[name] for name in names if name in counts]
        return tcp_proxy.Counts(
            sum(c.accepted for c in found),
            sum(c.resets for c in found),
            sum(c.lost_bytes for c in found),
        )

    @contextlib.contextmanager
    def cut(
        self, hosts: Sequence[str], service: Service, way: Way
    ) -> Iterator[None]:
        """Cut a service from hosts while the context is open.

        nova-conductor is frozen, whatever the hosts and the way.
        """
        if service is Service.CONDUCTOR:
            with self._frozen_conductor():
                yield
            return
        try:
            self._turn(hosts, service, way)
            yield
        finally:
            self._turn(hosts, service, Way.PASS)

    def _turn(self, hosts: Sequence[str], service: Service, way: Way) -> None:
        if service not in self.config.ports:
            raise CloudError(f'hosts reach {service} through no port')
        self._order({listener(host, service): way for host in hosts})

    def _order(self, ways: Mapping[str, Way]) -> dict[str, tcp_proxy.Counts]:
        try:
            return tcp_proxy.order(self._control, ways)
        except (OSError, ValueError) as exc:
            raise CloudError(f'the TCP proxies take no order: {exc}') from exc

    @contextlib.contextmanager
    def _frozen_conductor(self) -> Iterator[None]:
        pid = self._cloud.processes.require(_CONDUCTOR)
        pids = [pid, *processes.children(pid)]
        _signal_all(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal_all(pids, signal.SIGCONT)


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
