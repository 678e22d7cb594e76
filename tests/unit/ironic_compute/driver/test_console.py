# SPDX-License-Identifier: Apache-2.0
"""Serial consoles of servers."""

import nova.conf
import pytest
from nova import exception as nova_exception

from ironic_compute import errors
from tests.fakes.ironic import FakeIronic

from . import fake

CONF = nova.conf.CONF


def test_enabled_console_is_not_enabled_again():
    """Each request returns the address; a VNC console is enabled once."""
    bench = fake.bench_with_server()
    bench.ironic.console_type = 'vnc'
    for _ in range(2):
        bench.driver.get_vnc_console(None, fake.server())
    assert bench.ironic.names() == ['console']
    bench.ironic.console_type = 'socat'
    for _ in range(2):
        found = bench.driver.get_serial_console(None, fake.server())
    assert (found.host, found.port) == ('127.0.0.1', 9000)
    assert bench.ironic.names() == ['console']


def test_disabled_serial_console_is_not_enabled():
    """Only the operator enables serial consoles, as with stock Nova."""
    bench = fake.bench_with_server()
    with pytest.raises(nova_exception.ConsoleTypeUnavailable):
        bench.driver.get_serial_console(None, fake.server())
    assert not bench.ironic.calls
    assert not bench.ironic.is_console_on


@pytest.mark.parametrize(
    'interface', ['ipmitool-socat', 'ipmitool-shellinabox', 'ilo']
)
def test_request_for_a_vnc_console_enables_no_serial_one(interface):
    """Horizon asks for a VNC console first, and then for a serial one.

    The second request got a console that the operator had disabled.
    """
    bench = fake.bench_with_server()
    bench.ironic.console_interface = interface
    with pytest.raises(nova_exception.ConsoleTypeUnavailable):
        bench.driver.get_vnc_console(None, fake.server())
    assert not bench.ironic.calls
    assert not bench.ironic.is_console_on


class _Wedged(FakeIronic):
    """An Ironic whose console has no usable address until it is reset."""

    def set_console_mode(self, node, enabled):
        super().set_console_mode(node, enabled)
        if enabled:
            self.console_url = 'tcp://127.0.0.1:9001'


@pytest.mark.parametrize(
    'url', ['tcp://127.0.0.1:port', 'tcp://127.0.0.1', 'None', 'tcp://[::1']
)
def test_console_without_an_address_is_reset(url):
    """A serial console with a bad URL is disabled, and enabled again."""
    bench = fake.bench_with_server()
    bench.ironic.__class__ = _Wedged
    bench.ironic.is_console_on, bench.ironic.console_url = True, url
    found = bench.driver.get_serial_console(None, fake.server())
    assert (found.host, found.port) == ('127.0.0.1', 9001)
    assert [call[2] for call in bench.ironic.calls] == [False, True]


def test_console_that_stays_without_an_address_is_unavailable():
    """A bad URL that a reset does not mend is not an error of Nova."""
    bench = fake.bench_with_server()
    bench.ironic.is_console_on = True
    bench.ironic.console_url = 'tcp://127.0.0.1:port'
    with pytest.raises(nova_exception.ConsoleTypeUnavailable):
        bench.driver.get_serial_console(None, fake.server())


def test_console_of_another_type_is_not_reset():
    """A web console (shellinabox) is of no use to Nova, and goes on."""
    bench = fake.bench_with_server()
    bench.ironic.is_console_on = True
    bench.ironic.console_type = 'shellinabox'
    with pytest.raises(nova_exception.ConsoleTypeUnavailable):
        bench.driver.get_serial_console(None, fake.server())
    assert not bench.ironic.calls


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
    """``vnc_console_state_timeout`` limits the wait; 0 is no limit."""
    CONF.set_override('vnc_console_state_timeout', timeout_s, 'ironic')
    ironic = _SlowConsole()
    ironic.add(instance_uuid=fake.SERVER, provision_state='active')
    ironic.console_type = 'vnc'
    bench = fake.on(ironic, fake.bench_with_server())
    try:
        if opens:
            found = bench.driver.get_vnc_console(None, fake.server())
            assert found.port == 7
            return
        with pytest.raises(nova_exception.ConsoleTypeUnavailable):
            bench.driver.get_vnc_console(None, fake.server())
    finally:
        CONF.clear_override('vnc_console_state_timeout', 'ironic')


class _LateConsole(_Wedged):
    """An Ironic that disables a console only after many reads.

    It ignores a request to enable a console that is still enabled.
    """

    left_count = 0

    def set_console_mode(self, node, enabled):
        if not enabled:
            self.left_count = 30
        elif not self.is_console_on:
            super().set_console_mode(node, enabled)

    def read_console(self, node):
        if self.left_count:
            self.left_count -= 1
            self.is_console_on = self.left_count > 0
        return super().read_console(node)


def test_console_that_is_disabled_late_is_enabled_again():
    """It counted as one that the operator has disabled, for ever."""
    bench = fake.bench_with_server()
    bench.ironic.__class__ = _LateConsole
    bench.ironic.is_console_on = True
    bench.ironic.console_url = 'None'
    assert bench.driver.get_serial_console(None, fake.server()).port == 9001


def test_console_is_enabled_if_ironic_refuses_a_read_of_its_state():
    """Ironic has disabled it nevertheless."""
    bench = fake.bench_with_server()
    ironic = bench.ironic
    ironic.__class__ = _Wedged
    ironic.is_console_on, ironic.console_url = True, 'None'
    read = ironic.read_console

    def refuse_once(node):
        if ironic.calls:
            ironic.read_console = read
            raise errors.IronicRefused('no answer that can be read')
        return read(node)

    ironic.read_console = refuse_once
    assert bench.driver.get_serial_console(None, fake.server()).port == 9001
