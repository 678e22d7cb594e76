# SPDX-License-Identifier: Apache-2.0
"""The recipe for OpenStack-Ansible reaches Ironic's notifications."""

import itertools

import oslo_messaging
import pytest
from oslo_config import cfg

from ironic_compute.worker import executors
from tests.unit.install.files import CONTRIB, read_yaml, render

_FILE = CONTRIB / 'openstack-ansible' / 'group_vars' / 'ironic_compute.yml'
_OVERRIDES = read_yaml(_FILE)['nova_nova_conf_overrides']
# Of the roles os_nova and os_ironic (2026), and of user_secrets.yml.
_VALUES = {
    'nova_oslomsg_notify_transport': 'rabbit',
    'nova_oslomsg_notify_servers': '192.0.2.1,192.0.2.2',
    'nova_oslomsg_notify_port': '5671',
    'nova_oslomsg_notify_ssl_version': 'TLSv1_2',
    'nova_oslomsg_notify_ssl_ca_file': '/ca.pem',
    'ironic_oslomsg_rpc_password': 'secret',
}


@pytest.mark.parametrize(
    ('is_quorum', 'is_tls'), itertools.product((True, False), repeat=2)
)
def test_notifications_come_from_the_virtual_host_of_ironic(
    is_quorum: bool, is_tls: bool
) -> None:
    """From Nova's virtual host none arrived, and changes were seen late.

    Without quorum queues the role os_ironic begins its name with a slash.
    """
    text = render(
        _OVERRIDES['ironic_compute']['notification_transport_url'],
        **_VALUES,
        nova_oslomsg_rabbit_quorum_queues=is_quorum,
        nova_oslomsg_notify_use_ssl=is_tls,
    )
    url = oslo_messaging.TransportURL.parse(cfg.ConfigOpts(), text)
    assert url.virtual_host == ('ironic' if is_quorum else '/ironic')
    hosts = [(each.hostname, each.port) for each in url.hosts]
    assert hosts == [('192.0.2.1', 5671), ('192.0.2.2', 5671)]
    assert {(h.username, h.password) for h in url.hosts} == {
        ('ironic', 'secret')
    }
    assert url.query['ssl'] == ('1' if is_tls else '0')
    assert url.query.get('ssl_ca_file') == ('/ca.pem' if is_tls else None)


def test_unfinished_requests_keep_no_others_away() -> None:
    """The role's value of 10 would: a message waits until its work is done."""
    count = _OVERRIDES['oslo_messaging_rabbit']['rabbit_qos_prefetch_count']
    assert count == executors.AMPLE_COUNT
