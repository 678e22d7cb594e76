# SPDX-License-Identifier: Apache-2.0
"""VIFs: attach and detach of interfaces."""

import pytest
from nova import exception as nova_exception

from . import fake


def test_attach_and_detach_may_be_repeated():
    """A second attach, and a second detach, of a VIF succeeds."""
    bench = fake.bench_with_server()
    vif = fake.network()[0]
    for _ in range(2):
        bench.driver.attach_interface(None, fake.server(), None, vif)
    assert bench.ironic.attached[fake.NODE] == [fake.VIF]
    for _ in range(2):
        bench.driver.detach_interface(None, fake.server(), vif)
    assert bench.ironic.attached[fake.NODE] == []


def test_refused_attach_is_an_error():
    """A conflict about a VIF that is not attached raises an error."""
    bench = fake.bench_with_server()
    bench.ironic.refused['vif_attach'] = 'no free port'
    with pytest.raises(nova_exception.NovaException, match='no free port'):
        bench.driver.attach_interface(
            None, fake.server(), None, fake.network()[0]
        )
