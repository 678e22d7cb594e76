# SPDX-License-Identifier: Apache-2.0
"""Power, networks, consoles, rescue, questions."""

import nova.conf
import pytest
from nova import exception as nova_exception
from nova.compute import power_state

from tests.fakes.ironic import FakeIronic

from . import fake
from .faulty import FaultyIronic

CONF = nova.conf.CONF


def _bench(**fields):
    fields = {
        'instance_uuid': fake.SERVER,
        'provision_state': 'active',
        **fields,
    }
    return fake.bench(**fields)


def test_reached_power_state_sends_nothing():
    """No request is sent for a state that is reached."""
    bench = _bench()
    bench.driver.power_on(None, fake.server(), None)
    assert not bench.ironic.calls


def test_state_of_now_decides():
    """The book's state does not keep a machine from being switched on."""
    bench = _bench()
    bench.ironic.change(fake.NODE, power_state='power off')
    bench.driver.power_on(None, fake.server(), None)
    assert bench.ironic.names() == ['on']


def test_power_off_is_soft_first_with_a_timeout():
    """A time-out asks the machine's system, and that is enough."""
    bench = _bench()
    bench.driver.power_off(fake.server(), timeout=60)
    assert bench.ironic.names() == ['soft off']


@pytest.mark.parametrize('verb', ['off', 'reboot'])
def test_soft_power_falls_back(verb):
    """Hardware without soft power is used with its power control."""
    bench = _bench()
    bench.ironic.has_soft_power = False
    if verb == 'off':
        bench.driver.power_off(fake.server(), timeout=60)
    else:
        bench.driver.reboot(None, fake.server(), None, 'SOFT')
    assert bench.ironic.names() == [f'soft {verb}', verb]


def test_failed_power_action_says_why():
    """An action that ends in another state is an error."""
    bench = _bench()
    bench.ironic.power_works = False
    with pytest.raises(
        nova_exception.InstancePowerOffFailure, match='BMC is dead'
    ):
        bench.driver.power_off(fake.server())


def test_failed_reboot_says_why():
    """A reboot that leaves the machine on has failed all the same."""
    bench = _bench()
    bench.ironic.power_works = False
    with pytest.raises(nova_exception.InstanceRebootFailure):
        bench.driver.reboot(None, fake.server(), None, 'HARD')


def test_power_of_unknown_server_is_not_found():
    """Nova's own exception says that there is no such server."""
    bench = fake.bench()
    with pytest.raises(nova_exception.InstanceNotFound):
        bench.driver.power_on(None, fake.server(), None)


def test_info_comes_from_the_book_or_from_ironic():
    """The book answers unless the caller wants the truth."""
    bench = _bench()
    bench.ironic.change(fake.NODE, power_state='power off')
    cached = bench.driver.get_info(fake.server())
    asked = bench.driver.get_info(fake.server(), use_cache=False)
    assert cached.state == power_state.RUNNING
    assert asked.state == power_state.SHUTDOWN


def test_info_of_now_waits_for_an_ironic_that_is_away():
    """Nova asks before it reboots; an outage must not fail the reboot."""
    bench = _bench()
    faulty = FaultyIronic(bench.ironic)
    faulty.at = 0
    fake.on(faulty, bench)
    assert (
        bench.driver.get_info(fake.server(), use_cache=False).state
        == power_state.RUNNING
    )
    assert faulty.requests == ['node_of_instance'] * 2


def test_questions_about_nodes():
    """Nodes and servers are those of the book."""
    bench = _bench()
    assert bench.driver.get_available_nodes() == [fake.NODE]
    assert bench.driver.get_nodenames_by_uuid() == {fake.NODE: fake.NODE}
    assert bench.driver.list_instance_uuids() == [fake.SERVER]
    assert bench.driver.get_num_instances() == 1
    assert bench.driver.node_is_available(fake.NODE)
    assert not bench.driver.is_node_deleted(fake.NODE)
    assert bench.driver.is_node_deleted(fake.OTHER)
    assert bench.driver.instance_exists(fake.server())


def test_interfaces_come_and_go():
    """Attaching and detaching again and again are successes."""
    bench = _bench()
    vif = fake.network()[0]
    for _ in range(2):
        bench.driver.attach_interface(None, fake.server(), None, vif)
    assert bench.ironic.attached[fake.NODE] == [fake.VIF]
    for _ in range(2):
        bench.driver.detach_interface(None, fake.server(), vif)
    assert bench.ironic.attached[fake.NODE] == []


def test_refused_interface_is_an_error():
    """A conflict that does not mean "attached already" is not hidden."""
    bench = _bench()
    bench.ironic.refused['vif_attach'] = 'no free port'
    with pytest.raises(nova_exception.NovaException, match='no free port'):
        bench.driver.attach_interface(
            None, fake.server(), None, fake.network()[0]
        )


def test_console_in_use_is_left_alone():
    """A second request switches nothing."""
    bench = _bench()
    for _ in range(2):
        found = bench.driver.get_serial_console(None, fake.server())
    assert (found.host, found.port) == ('127.0.0.1', 9000)
    assert bench.ironic.names() == ['console']


class _SlowConsole(FakeIronic):
    """A console that opens a while after it was asked to."""

    left_count = 30

    def set_console_mode(self, node, enabled):
        self._changing('console', node, enabled)

    def console(self, node):
        self.left_count -= 1
        self.is_console_on = self.left_count <= 0
        return super().console(node)


@pytest.mark.parametrize(('timeout_s', 'opens'), [(0, True), (10, False)])
def test_console_is_waited_for(timeout_s, opens):
    """As long as nova.conf says; 0 is as long as it takes."""
    CONF.set_override('serial_console_state_timeout', timeout_s, 'ironic')
    ironic = _SlowConsole()
    ironic.add(instance_uuid=fake.SERVER, provision_state='active')
    bench = fake.on(ironic, _bench())
    try:
        if opens:
            found = bench.driver.get_serial_console(None, fake.server())
            assert found.port == 9000
            return
        with pytest.raises(nova_exception.ConsoleTypeUnavailable):
            bench.driver.get_serial_console(None, fake.server())
    finally:
        CONF.clear_override('serial_console_state_timeout', 'ironic')


def test_rescue_and_back():
    """A server goes into rescue and comes back."""
    bench = _bench()
    bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)
    assert bench.ironic.nodes[fake.NODE].provision_state == 'rescue'
    bench.driver.unrescue(None, fake.server())
    assert bench.ironic.nodes[fake.NODE].provision_state == 'active'


def test_failed_rescue_says_why():
    """Ironic's words reach the user when a rescue fails."""
    bench = _bench()
    bench.ironic.fails['rescue'] = 'rescue failed'
    with pytest.raises(nova_exception.InstanceRescueFailure, match='broken'):
        bench.driver.rescue(None, fake.server(), None, None, 'pw', None, None)


def test_crash_dump_is_an_nmi():
    """A crash dump is asked for with an interrupt."""
    bench = _bench()
    bench.driver.trigger_crash_dump(fake.server())
    assert bench.ironic.names() == ['nmi']
