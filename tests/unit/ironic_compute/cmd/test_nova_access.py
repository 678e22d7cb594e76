# SPDX-License-Identifier: Apache-2.0
"""Access of the operator's commands to Nova's records."""

import oslo_messaging
import pytest
from nova.objects import base
from oslo_config import cfg

from ironic_compute.cmd import nova_access


def test_commands_speak_on_the_exchange_of_nova(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RPC goes to Nova's exchange; no service uses the default one."""
    found: list[str] = []

    def init(conf: object) -> None:
        fresh = cfg.ConfigOpts()  # An exchange once read is remembered.
        oslo_messaging.get_rpc_transport(fresh, 'fake://')
        found.append(fresh.control_exchange)

    oslo_messaging.set_transport_defaults('openstack')
    monkeypatch.setattr('nova.rpc.init', init)
    monkeypatch.setattr('nova.conductor.rpcapi.ConductorAPI', object)
    monkeypatch.setattr(base.NovaObject, 'indirection_api', None)
    monkeypatch.setattr('nova.rpc.get_transport_url', lambda: 'fake://')
    nova_access.use_nova_conductor()
    assert found == ['nova']
