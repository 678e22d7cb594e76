# SPDX-License-Identifier: Apache-2.0
"""The TCP proxies of all hosts, and configuration that leads through them."""

import configparser
import contextlib
import os
import shutil
import socket
import ssl
import sys
import threading

import pytest
from onemachine import computes, config, processes
from onemachine.chaos import proxies, proxy
from onemachine.chaos.cells import Service
from onemachine.chaos.tcp_proxy import Way
from onemachine.control import Cloud
from onemachine.layout import ADDRESS, Layout
from onemachine.progress import CloudError, wait_until

HOSTS = ('c1', 'c2', 'c3')


@pytest.fixture
def proxied(layout):
    """Return the configuration of three hosts, with etcd."""
    return proxies.ProxiedConfig(layout, HOSTS, 'etcd')


def parsed(text):
    """Return an ini file as a parser reads it."""
    parser = configparser.RawConfigParser(strict=True)
    parser.read_string(text)
    return parser


def urls_of(sections):
    """Return all options with a service's port, as section.option."""
    return {
        f'{section}.{option}': value
        for section, options in sections.items()
        for option, value in options.items()
        if 'memcache' not in option and ':26' in str(value)
    }


def test_each_url_of_a_host_leads_through_its_proxies(layout, proxied):
    """No URL in nova.conf names a service directly."""
    sections = proxied.rewrite('c2', config.nova(layout, 'c2'))
    urls = urls_of(sections)
    assert {
        'DEFAULT.transport_url',
        'ironic.endpoint_override',
        'neutron.endpoint_override',
        'placement.endpoint_override',
        *(
            f'{name}.auth_url'
            for name in (
                'ironic',
                'keystone_authtoken',
                'neutron',
                'placement',
                'service_user',
            )
        ),
    } <= set(urls)
    assert all('127.0.2.2:' in url for url in urls.values()), urls
    assert sections['DEFAULT']['transport_url'] == (
        f'rabbit://guest:guest@127.0.2.2:{layout.port("rabbit")}/'
    )
    assert sections['ironic']['endpoint_override'] == (
        f'http://127.0.2.2:{layout.port("ironic")}'
    )


def test_other_options_stay(layout, proxied):
    """Only URLs change; memcached is reached directly."""
    before = config.nova(layout, 'c1')
    after = proxied.rewrite('c1', before)
    assert after['DEFAULT']['my_ip'] == ADDRESS
    assert after['cache'] == dict(before['cache'])
    assert after['scheduler'] == dict(before['scheduler'])
    assert set(after) == set(before)


def test_a_host_without_proxies_keeps_its_configuration(layout, proxied):
    """A fourth host has no proxies."""
    sections = config.nova(layout, 'c4')
    assert proxied.rewrite('c4', sections) == sections


@pytest.mark.parametrize(
    'kind', ['etcd', 'redis', 'zookeeper', 'memcached', 'file']
)
def test_coordination_leads_through_a_proxy(layout, kind):
    """Each backend with a port has its listener; files have none."""
    cloud = Cloud(layout)
    layout.folder('etc').joinpath('coordination').write_text(kind)
    proxied = proxies.ProxiedConfig(layout, HOSTS, kind)
    url = cloud.coordination.url
    ours = {'coordination': {'backend_url': url}}
    after = proxied.rewrite('c1', ours)['coordination']['backend_url']
    if kind == 'file':
        assert after == url
        assert Service.COORDINATION not in proxied.ports
    else:
        port = proxied.ports[Service.COORDINATION]
        assert after.endswith(f'127.0.2.1:{port}')


def test_listeners_are_distinct_and_lead_to_the_services(layout, proxied):
    """Ironic and Placement stay behind the proxy that records changes."""
    places = proxied.places()
    assert len(places) == 3 * 6
    assert len({place for place, _ in places.values()}) == len(places)
    port = layout.port('ironic')
    assert places['c3/ironic'] == (
        ('127.0.2.3', port),
        (proxy.address(2), port),
    )
    assert places['c3/keystone'][1] == (ADDRESS, layout.port('keystone'))
    assert 'c1/conductor' not in places


def test_with_tls_each_url_names_the_authority(layout, tmp_path):
    """No URL is plain, and each section trusts the test's authority."""
    authority = tmp_path / 'authority.pem'
    tls = proxies.ProxiedConfig(layout, HOSTS, 'etcd', authority)
    sections = tls.rewrite('c1', config.nova(layout, 'c1'))
    for name, options in sections.items():
        urls = [v for v in options.values() if '127.0.2.1' in str(v)]
        assert not any('http://' in url for url in urls), name
        if any('https://' in url for url in urls):
            assert options['cafile'] == str(authority), name
    assert sections['ironic']['endpoint_override'].startswith('https://')
    assert sections['oslo_messaging_rabbit']['ssl'] == 'true'
    port = tls.ports[Service.COORDINATION]
    url = f'etcd3+http://{ADDRESS}:{port}'
    ours = {'coordination': {'backend_url': url}}
    assert tls.rewrite('c1', ours)['coordination']['backend_url'] == (
        f'etcd3+https://127.0.2.1:{port}?ca_cert={authority}'
    )


def test_files_of_an_agent_are_rewritten_only_if_asked(layout, proxied):
    """With the hook, both files lead through proxies; without, none does."""
    cloud = Cloud(layout)
    layout.folder('etc').joinpath('coordination').write_text('etcd')
    folder = layout.folder('agents', 'c1')

    def write(hosts):
        hosts._write_agent('c1', folder, hosts.nova_conf('c1'))
        return [
            (folder / name).read_text()
            for name in ('nova.conf', 'ironic-compute.conf')
        ]

    assert not any('127.0.2.' in t for t in write(computes.Computes(cloud)))
    nova, ours = write(computes.Computes(cloud, rewrite=proxied.rewrite))
    etcd = f'127.0.2.1:{layout.port("etcd")}'
    assert parsed(ours)['coordination']['backend_url'].endswith(etcd)
    assert '127.0.2.1' in parsed(nova)['DEFAULT']['transport_url']


@pytest.fixture
def cloud(tmp_path):
    """Return a cloud without services, on ports of this process alone."""
    port_base = 20000 + os.getpid() % 350 * 16
    cloud = Cloud(Layout(tmp_path / 'state', port_base))
    cloud.layout.folder('etc').joinpath('coordination').write_text('etcd')
    yield cloud
    for name in cloud.processes.names():
        cloud.processes.stop(name, 5)


def test_cut_lasts_as_long_as_its_context(cloud):
    """Only the cut listener refuses connections, until the end."""
    some = proxies.Proxies(cloud, HOSTS, 1)
    some.start()
    port = cloud.layout.port('keystone')
    with socket.create_server((ADDRESS, port)) as keystone:
        with some.cut(['c1'], Service.KEYSTONE, Way.REFUSED):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(('127.0.2.1', port), 5)
            socket.create_connection(('127.0.2.2', port), 5).close()
        with socket.create_connection(('127.0.2.1', port), 5) as host:
            host.sendall(b'request')
            # The connection of the other host comes first.
            keystone.settimeout(5)
            received = b''
            while not received:
                received = keystone.accept()[0].recv(100)
            assert received == b'request'
    assert some.counts(['c1', 'c2'], Service.KEYSTONE).accepted == 2
    assert some.counts(['c3'], Service.KEYSTONE).accepted == 0
    some.stop()
    with pytest.raises(CloudError, match='take no order'):
        some.counts(HOSTS, Service.KEYSTONE)


def shake_hands(place, authority):
    """Open a connection by TLS, and return what its server answers."""
    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection(place, 5) as plain,
        context.wrap_socket(plain, server_hostname=place[0]) as host,
    ):
        host.sendall(b'request')
        return host.recv(100)


@pytest.mark.skipif(shutil.which('haproxy') is None, reason='needs haproxy')
def test_certificate_expires_for_the_cut_host_alone(cloud):
    """Bytes pass through TLS; then the handshake of one host fails."""
    some = proxies.Proxies(cloud, HOSTS, 1, tls=True)
    some.start()
    authority = cloud.layout.folder('chaos') / 'tls' / 'authority.pem'
    port = cloud.layout.port('rabbit')
    with socket.create_server((ADDRESS, port)) as rabbit:
        threading.Thread(target=_echo, args=(rabbit,), daemon=True).start()
        assert shake_hands(('127.0.2.1', port), authority) == b'request'
        with some.cut(['c1'], Service.RABBIT, Way.EXPIRED):
            with pytest.raises(ssl.SSLCertVerificationError, match='expired'):
                shake_hands(('127.0.2.1', port), authority)
            assert shake_hands(('127.0.2.2', port), authority) == b'request'
        assert shake_hands(('127.0.2.1', port), authority) == b'request'
    some.stop()


def _echo(server):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(100))


def test_no_port_no_cut(cloud):
    """A coordination backend in files cannot be cut."""
    cloud.layout.folder('etc').joinpath('coordination').write_text('file')
    some = proxies.Proxies(cloud, HOSTS, 1)
    with (
        pytest.raises(CloudError, match='through no port'),
        some.cut(['c1'], Service.COORDINATION, Way.REFUSED),
    ):
        pass


PARENT = """
import subprocess, sys
child = subprocess.Popen(['sleep', '60'])
child.wait()
"""


def test_conductor_is_frozen_with_its_workers(cloud):
    """nova-conductor and its workers stop, and go on at the end."""
    pid = cloud.processes.start(
        'nova-conductor', [sys.executable, '-c', PARENT]
    )
    wait_until('its worker', lambda: processes.children(pid), 10, 0.05)

    def states():
        pids = [pid, *processes.children(pid)]
        return {processes._stat(one)[0] for one in pids}

    some = proxies.Proxies(cloud, HOSTS, 1)
    with some.cut(HOSTS, Service.CONDUCTOR, Way.BLACK_HOLE):
        wait_until('all stopped', lambda: states() == {'T'}, 5, 0.05)
    wait_until('all awake', lambda: states() == {'S'}, 5, 0.05)
