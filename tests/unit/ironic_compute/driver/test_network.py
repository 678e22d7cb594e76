# SPDX-License-Identifier: Apache-2.0
"""VIFs: attach and detach of interfaces."""

import pytest
from nova import exception as nova_exception

from . import fake


def _bench(**fields):
    """Return a driver whose node is active and has the server."""
    fields = {
        'instance_uuid': fake.SERVER,
        'provision_state': 'active',
        **fields,
    }
    return fake.bench(**fields)


def test_attach_and_detach_may_be_repeated():
    """A second attach, and a second detach, of a VIF succeeds."""
    bench = _bench()
    vif = fake.network()[0]
    for _ in range(2):
        bench.driver.attach_interface(None, fake.server(), None, vif)
    assert bench.ironic.attached[fake.NODE] == [fake.VIF]
    for _ in range(2):
        bench.driver.detach_interface(None, fake.server(), vif)
    assert bench.ironic.attached[fake.NODE] == []


def test_refused_attach_is_an_error():
    """A conflict about a VIF that is not attached raises an error."""
    bench = _bench()
    bench.ironic.refused['vif_attach'] = 'no free port'
    with pytest.raises(nova_exception.NovaException, match='no free port'):
        bench.driver.attach_interface(
            None, fake.server(), None, fake.network()[0]
        )
