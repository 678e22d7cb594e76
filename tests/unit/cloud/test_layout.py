# SPDX-License-Identifier: Apache-2.0
"""The folders and ports of a cloud."""

import pytest
from onemachine import layout as layouts
from onemachine.layout import Layout
from onemachine.progress import CloudError


def test_ports_differ_and_follow_the_base(tmp_path):
    """Each service has a port of its own, counted from the first port."""
    at_default = Layout(tmp_path)
    moved = Layout(tmp_path, 30000)
    ports = [moved.port(name) for name in layouts._PORTS]
    assert len(set(ports)) == len(ports)
    assert min(ports) == 30000
    assert moved.port('nova') - at_default.port('nova') == 4000


def test_ports_are_remembered(tmp_path):
    """A command without a first port uses that of the cloud."""
    Layout.of(tmp_path, 30000).keep_port_base()
    assert Layout.of(tmp_path).port_base == 30000
    assert Layout.of(tmp_path, 30000).port_base == 30000


def test_ports_of_a_made_cloud_do_not_move(tmp_path):
    """Another first port is refused; the error names both."""
    Layout.of(tmp_path, 30000).keep_port_base()
    with pytest.raises(CloudError, match=r'from 30000 on: .*reset'):
        Layout.of(tmp_path, 31000)


@pytest.mark.parametrize('base', [0, 80, 32753, 32768, 40000, 65530])
def test_ports_that_cannot_be_are_refused(tmp_path, base):
    """Privileged ports and the ports of clients are refused."""
    with pytest.raises(CloudError, match='--port-base'):
        Layout.of(tmp_path, base)


def test_cloud_that_was_made_so_is_found(tmp_path):
    """A cloud on ports that are refused today can still be used."""
    Layout(tmp_path, 40000).keep_port_base()
    assert Layout.of(tmp_path).port_base == 40000
    assert Layout.of(tmp_path, 40000).port_base == 40000


def test_state_folder_is_named_by_the_environment(monkeypatch, tmp_path):
    """The environment variable overrides the home folder."""
    monkeypatch.setenv('IRONIC_COMPUTE_CLOUD', str(tmp_path))
    assert layouts.default_state() == tmp_path
    monkeypatch.delenv('IRONIC_COMPUTE_CLOUD')
    monkeypatch.setenv('HOME', str(tmp_path))
    assert tmp_path in layouts.default_state().parents


def test_services_see_little_of_the_environment(layout, monkeypatch):
    """A user's variables for another cloud do not reach the services."""
    monkeypatch.setenv('OS_AUTH_URL', 'http://elsewhere.example')
    environment = layout.environment(MORE='1')
    assert 'OS_AUTH_URL' not in environment
    assert environment['MORE'] == '1'
    assert environment['PATH'].startswith(str(layout.venv))


def test_everything_listens_on_loopback(layout):
    """No URL has an address that another machine can reach."""
    urls = [layout.url(name) for name in layout.apis]
    urls += [layout.broker, layout.database('nova')]
    assert all('127.0.0.1:' in url for url in urls)
