# SPDX-License-Identifier: Apache-2.0
"""Runs our daemon on the nova.conf of a stock nova-compute, unchanged.

There are two files: the one that a stock nova-compute of this cloud has, and
one with every option of ``[ironic]`` set to another value than its default.
Stock nova-compute is started on each file first, to prove that the file is
that of a working deployment.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ironic_compute.ironic_api.client import UNUSED
from onemachine import config, content, running
from onemachine.computes import Computes
from onemachine.control import Cloud
from onemachine.layout import REGION
from onemachine.progress import (
    CloudError,
    expect,
    print_line,
    step,
    wait_until,
)

HOST = 'c1'
SHARD = 'shard-1'
# A section from which Nova reads credentials; there is no Cinder here.
_AUTH = 'cinder'
_NODES_COUNT = 3
_NOTICE = 'in [ironic] of nova.conf'
_CERTIFICATE = '/etc/ssl/certs/ca-certificates.crt'
# Nova accepts these options in any group and does not use them.
_NOBODYS = frozenset({'min_version', 'max_version', 'version'})


def values(endpoint: str) -> Mapping[str, Any]:
    """Return the value that each option of ``[ironic]`` is set to.

    The options of the credentials are in a section of their own, which one
    of the options names.
    """
    return {
        'api_max_retries': 30,
        'api_retry_interval': 1,
        'auth_section': _AUTH,
        'cafile': _CERTIFICATE,
        'certfile': _CERTIFICATE,
        'collect_timing': 'true',
        'conductor_group': '',
        'connect_retries': 3,
        'connect_retry_delay': 0.5,
        'endpoint_override': endpoint,
        'insecure': 'true',
        'keyfile': _CERTIFICATE,
        'max_version': '1.95',
        'min_version': '1.46',
        'peer_list': HOST,
        'region_name': REGION,
        'retriable_status_codes': 503,
        'serial_console_state_timeout': 20,
        'service_name': 'ironic',
        # This is the default, because Ironic answers 406 to stock if the value
        # is bare-metal.
        'service_type': 'baremetal',
        'shard': SHARD,
        'split_loggers': 'true',
        'status_code_retries': 3,
        'status_code_retry_delay': 0.5,
        'timeout': 75,
        'tls_ciphers': 'HIGH',
        'tls_min_version': '1.2',
        'valid_interfaces': 'public',
        'version': '1',
        'vnc_console_state_timeout': 30,
    }


def forgotten(known: Iterable[str], credentials: Iterable[str]) -> set[str]:
    """Return the options of Nova's group that are set nowhere here."""
    # This option is in the section of the credentials.
    return set(known) - {*values(''), 'auth_type'} - set(credentials)


class Options:
    """Starts stock, then ours, on the same file."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._layout = cloud.layout
        self._running = running.Running(cloud.layout)
        self._content = content.Content(cloud.layout)

    def run(self) -> None:
        """Check each file.

        :raises CloudError: ours does not work on it as stock does
        """
        if self._content.servers():
            raise CloudError(
                'there are servers: "devstack/cloud delete --all" first'
            )
        self._check_all_options_known()
        self._content.enroll(_NODES_COUNT)
        self._content.power_on()
        self._stop()
        self._content.forget_hosts(but=[HOST])
        self._check_file('as stock has it', {}, frozenset())
        more = self._sections()
        named = frozenset(more['ironic']) & set(UNUSED) - _NOBODYS
        with self._shard():
            self._check_file('with every option of [ironic]', more, named)

    def _check_all_options_known(self) -> None:
        from keystoneauth1 import loading
        from nova.conf import CONF

        plugin = loading.get_auth_plugin_conf_options('password')
        left = forgotten(CONF.ironic, (one.dest for one in plugin))
        expect(not left, f'options of [ironic] that are not tried: {left}')

    def _sections(self) -> config.Sections:
        """Return [ironic] and the section with its credentials."""
        plain = config.nova(self._layout, HOST)['ironic']
        return {_AUTH: plain, 'ironic': values(self._layout.url('ironic'))}

    @contextmanager
    def _shard(self) -> Iterator[None]:
        """Put all nodes into a shard, and later out of it again."""
        nodes, update = self._content.nodes(), self._content.metal.update_node
        content.each(lambda node: update(node, shard=SHARD), nodes)
        try:
            yield
        finally:
            content.each(lambda node: update(node, shard=None), nodes)

    def _check_file(
        self, name: str, more: config.Sections, unused: frozenset[str]
    ) -> None:
        """Check stock on a file, then ours, and the log of ours."""
        with step(f'nova.conf {name}'):
            computes = Computes(self._cloud, nova=more)
            self._stop()
            computes.start_peers([HOST])
            self._check_server()
            self._stop()
            given = self._layout.folder('peers', HOST) / 'nova.conf'
            begun = self._log_size()
            computes.start_agents([HOST], nova_conf=given)
            kept = self._layout.folder('agents', HOST) / 'nova.conf'
            expect(kept.read_bytes() == given.read_bytes(), f'{kept} differs')
            self._check_server()
            self._check_log(begun, unused)
            self._stop()
        print_line(f'SEEN: nova.conf {name}')

    def _stop(self) -> None:
        if hosts := self._running.hosts():
            self._running.stop(hosts)

    def _check_server(self) -> None:
        """Boot, stop, start and delete a server."""
        nodes = set(self._content.nodes())

        def are_held() -> bool:
            holders = self._content.holders()
            return {holders.get(node) for node in nodes} == {HOST}

        wait_until(f'all nodes with {HOST}', are_held, 300)
        wait_until(
            'all nodes offered',
            lambda: nodes <= self._content.schedulable(),
            300,
        )
        (server,) = self._content.boot(1, 300)
        self._content.reboot([server])
        self._content.delete([server.id])

    def _log_size(self) -> int:
        path = self._layout.log(f'agent-{HOST}')
        return path.stat().st_size if path.exists() else 0

    def _check_log(self, begun: int, unused: frozenset[str]) -> None:
        """Check that the log has one notice with these options.

        It must have no error.
        """
        with self._layout.log(f'agent-{HOST}').open('rb') as file:
            file.seek(begun)
            lines = file.read().decode(errors='replace').splitlines()
        errors = [line for line in lines if ' ERROR ' in line]
        expect(not errors, f'the log has {errors[:1]}')
        notices = [line for line in lines if _NOTICE in line]
        expect(len(notices) == bool(unused), f'notices: {notices}')
        for line in notices:
            said = line.partition('Ignored ')[2]
            named = set(said.partition(f' {_NOTICE}')[0].split(', '))
            expect(named == unused, f'{named} are named, not {unused}')
            print_line(f'  {said}')
