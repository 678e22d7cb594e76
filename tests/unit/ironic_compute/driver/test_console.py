# SPDX-License-Identifier: Apache-2.0
"""Serial consoles of servers."""

import nova.conf
import pytest
from nova import exception as nova_exception

from tests.fakes.ironic import FakeIronic

from . import fake

CONF = nova.conf.CONF


def test_enabled_console_is_not_enabled_again():
    """A second request returns the address and changes nothing."""
    bench = fake.bench_with_server()
    for _ in range(2):
        found = bench.driver.get_serial_console(None, fake.server())
    assert (found.host, found.port) == ('127.0.0.1', 9000)
    assert bench.ironic.names() == ['console']


class _SlowConsole(FakeIronic):
    """An Ironic whose console is enabled only after 30 reads."""

    left_count = 30

    def set_console_mode(self, node, enabled):
        self._changing('console', node, enabled)

    def read_console(self, node):
        self.left_count -= 1
        self.is_console_on = self.left_count <= 0
        return super().read_console(node)


@pytest.mark.parametrize(('timeout_s', 'opens'), [(0, True), (10, False)])
def test_console_is_waited_for_as_long_as_configured(timeout_s, opens):
    """``serial_console_state_timeout`` limits the wait; 0 is no limit."""
    CONF.set_override('serial_console_state_timeout', timeout_s, 'ironic')
    ironic = _SlowConsole()
    ironic.add(instance_uuid=fake.SERVER, provision_state='active')
    bench = fake.on(ironic, fake.bench_with_server())
    try:
        if opens:
            found = bench.driver.get_serial_console(None, fake.server())
            assert found.port == 9000
            return
        with pytest.raises(nova_exception.ConsoleTypeUnavailable):
            bench.driver.get_serial_console(None, fake.server())
    finally:
        CONF.clear_override('serial_console_state_timeout', 'ironic')
