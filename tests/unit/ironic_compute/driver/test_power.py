# SPDX-License-Identifier: Apache-2.0
"""Power on, power off, reboot and NMI."""

import pytest
from nova import exception as nova_exception

from ironic_compute import errors
from ironic_compute.driver.power import facts_when_idle
from ironic_compute.gate import LeaseGate, check_may_wait
from ironic_compute.retry import retry
from resource_tracker.node import NodeFacts, NodeId

from . import fake, timed
from .faulty import FAULTS, FaultyIronic


def test_reached_power_state_sends_nothing():
    """Power on sends nothing to a node that is on."""
    bench = fake.bench_with_server()
    bench.driver.power_on(None, fake.server(), None)
    assert not bench.ironic.calls


def test_power_on_reads_the_present_state():
    """An old power state in the node cache does not prevent a power on."""
    bench = fake.bench_with_server()
    bench.ironic.change(fake.NODE, power_state='power off')
    bench.driver.power_on(None, fake.server(), None)
    assert bench.ironic.names() == ['on']


def test_power_off_is_soft_first_with_a_timeout():
    """With a timeout, only a soft power off is sent if it succeeds."""
    bench = fake.bench_with_server()
    bench.driver.power_off(fake.server(), timeout=60)
    assert bench.ironic.names() == ['soft off']


@pytest.mark.parametrize('verb', ['off', 'reboot'])
def test_soft_power_action_that_fails_is_followed_by_a_hard_one(verb):
    """Hardware without soft power actions gets a hard one."""
    bench = fake.bench_with_server()
    bench.ironic.has_soft_power = False
    if verb == 'off':
        bench.driver.power_off(fake.server(), timeout=60)
    else:
        bench.driver.reboot(None, fake.server(), None, 'SOFT')
    assert bench.ironic.names() == [f'soft {verb}', verb]


def test_failed_power_action_raises_the_error_of_ironic():
    """A power action that ends in another power state raises an error."""
    bench = fake.bench_with_server()
    bench.ironic.power_works = False
    with pytest.raises(
        nova_exception.InstancePowerOffFailure, match='BMC is dead'
    ):
        bench.driver.power_off(fake.server())


def test_failed_reboot_is_an_error_though_the_machine_is_on():
    """A reboot with an error has failed, even if the machine is on."""
    bench = fake.bench_with_server()
    bench.ironic.power_works = False
    with pytest.raises(nova_exception.InstanceRebootFailure):
        bench.driver.reboot(None, fake.server(), None, 'HARD')


def test_power_of_unknown_server_is_not_found():
    """A power action on a server without a node raises InstanceNotFound."""
    bench = fake.bench()
    with pytest.raises(nova_exception.InstanceNotFound):
        bench.driver.power_on(None, fake.server(), None)


def test_crash_dump_is_an_nmi():
    """A crash dump request sends one non-maskable interrupt."""
    bench = fake.bench_with_server()
    bench.driver.trigger_crash_dump(fake.server())
    assert bench.ironic.names() == ['nmi']


_UNANSWERED = [
    fault
    for fault in FAULTS
    if fault.name in ('500', '500 done', 'late', 'reset', 'reset done')
]
_ACTIONS = {
    'on': lambda driver: driver.power_on(None, fake.server(), None),
    'off': lambda driver: driver.power_off(fake.server()),
    'soft off': lambda driver: driver.power_off(fake.server(), timeout=60),
    'reboot': lambda driver: driver.reboot(None, fake.server(), None, 'HARD'),
    'soft reboot': lambda driver: driver.reboot(
        None, fake.server(), None, 'SOFT'
    ),
}


@pytest.mark.parametrize('fault', _UNANSWERED, ids=str)
@pytest.mark.parametrize('action', _ACTIONS)
def test_power_action_without_an_answer_is_done_once(action, fault):
    """A stop failed, and a reboot was lost without an error in Nova."""
    bench = fake.bench_with_server()
    if action == 'on':
        bench.ironic.change(fake.NODE, power_state='power off')
    bench = fake.on(FaultyIronic(bench.ironic), bench)
    bench.ironic.at, bench.ironic.fault = 1, fault
    _ACTIONS[action](bench.driver)
    assert bench.ironic.names() == [action]


def test_machine_whose_reboot_had_ended_without_an_answer_is_left_alone():
    """The proxy before Ironic gave up when the machine was rebooted."""
    bench = fake.bench_with_server()
    ironic, reboot = bench.ironic, bench.ironic.set_power_state

    def reboot_and_be_late(node, *args, **kwargs):
        reboot(node, *args, **kwargs)
        ironic.settle(node)
        ironic.change(node, updated_at='2026-11-28T10:00:00+00:00')
        raise errors.IronicUnavailable('too late', 504)

    ironic.set_power_state = reboot_and_be_late
    bench.driver.reboot(None, fake.server(), None, 'SOFT')
    assert ironic.names() == ['soft reboot']


@pytest.mark.parametrize(
    ('lock', 'is_idle'),
    [
        (None, True),
        ('conductor1', False),
        ('** Redacted - requires baremetal:x permission. **', True),
    ],
)
def test_lock_that_ironic_hides_does_not_make_a_node_busy(lock, is_idle):
    """Without a right, Ironic shows a text for a lock and for none."""
    facts = NodeFacts(NodeId('n1'), reservation=lock)
    assert (facts_when_idle(facts) is facts) is is_idle


@pytest.mark.parametrize('timeout_s', [0, 60])
def test_power_off_outlasts_an_outage_that_is_longer_than_its_wait(
    timeout_s: int,
) -> None:
    """The machine was off, and a soft delete was forgotten."""
    bench = timed.bench(instance_uuid=fake.SERVER, provision_state='active')
    ironic, clock = bench.ironic, bench.clock
    ironic.change(fake.NODE, power_state='power on')
    send = ironic.set_power_state

    def begin(node: str, target: str, **options: object) -> None:
        send(node, target, **options)
        off = {'power_state': 'power off', 'target_power_state': None}
        ironic.change(node, target_power_state=off['power_state'])
        ironic.change_after(30.0, **off)

    ironic.set_power_state = begin
    timed.break_after_change(bench, 2400.0)
    retry(
        lambda: bench.driver.power_off(fake.server(), timeout=timeout_s),
        clock,
        errors.is_ironic_away,  # As of a soft delete, and of a shelving.
    )
    assert ironic.nodes[fake.NODE].power_state == 'power off'
    assert len(ironic.names()) == 1


def test_reboot_that_waited_for_a_lock_is_not_taken_for_done() -> None:
    """Ironic changes the node's time with each lock, also with another's.

    The machine was not rebooted, and Nova's user was told that it was.
    """
    bench = fake.bench_with_server()
    ironic, send = bench.ironic, bench.ironic.set_power_state
    answers: list[Exception] = [
        errors.IronicUnavailable('no answer'),
        errors.NodeLocked('locked'),
    ]

    def answer(node: str, *args: object, **kwargs: object) -> None:
        if not answers:
            send(node, *args, **kwargs)  # type: ignore[arg-type]
            return
        exc = answers.pop()
        if isinstance(exc, errors.NodeLocked):
            ironic.change(node, updated_at='2026-11-28T10:00:00+00:00')
        raise exc

    ironic.set_power_state = answer  # type: ignore[method-assign]
    bench.driver.reboot(None, fake.server(), None, 'HARD')
    assert ironic.names() == ['reboot']


class _Lapsed(LeaseGate):
    """The gate of a lapsed lease, during which Ironic changes the node."""

    def __init__(self, bench: fake.Bench) -> None:
        super().__init__(bench.clock)
        self._bench = bench

    def wait(self) -> None:
        """Return at once, after a check."""
        if not self.is_open():
            check_may_wait()
            self._bench.ironic.change(
                fake.NODE, updated_at='2026-11-28T10:00:00+00:00'
            )
            self.extend(self._bench.clock.now_s() + 1e6)


@pytest.mark.parametrize('kind', ['SOFT', 'HARD'])
def test_reboot_that_waited_for_the_lease_is_not_taken_for_done(
    kind: str,
) -> None:
    """The node had changed meanwhile, and the only answer was lost."""
    bench = fake.bench_with_server()
    ironic, send = bench.ironic, bench.ironic.set_power_state
    gate, lost = _Lapsed(bench), [errors.IronicUnavailable('no answer')]

    def answer(*args: object, **options: object) -> None:
        gate.wait()
        if lost:
            raise lost.pop()
        send(*args, **options)  # type: ignore[arg-type]

    ironic.wait_for_lease = gate.wait  # type: ignore[method-assign]
    ironic.set_power_state = answer  # type: ignore[method-assign]
    bench.driver.reboot(None, fake.server(), None, kind)
    assert ironic.names() == ['soft reboot' if kind == 'SOFT' else 'reboot']


def test_reboot_that_is_begun_during_a_wait_is_not_sent_again() -> None:
    """Ironic was late with the first request, whose answer was lost."""
    bench = fake.bench_with_server()
    ironic, send = bench.ironic, bench.ironic.set_power_state
    gate, node = LeaseGate(bench.clock), fake.NODE

    def answer(*args: object, **options: object) -> None:
        if not ironic.calls:
            ironic.calls.append(('late',))
            raise errors.IronicUnavailable('no answer')
        if not gate.is_open():
            check_may_wait()
            begin()
        send(*args, **options)  # type: ignore[arg-type]

    def begin() -> None:
        gate.extend(bench.clock.now_s() + 1e6)
        ironic.change(node, updated_at='2026-11-28T10:00:00+00:00')

    ironic.wait_for_lease = begin  # type: ignore[method-assign]
    ironic.set_power_state = answer  # type: ignore[method-assign]
    bench.driver.reboot(None, fake.server(), None, 'HARD')
    assert ironic.names() == ['late']
