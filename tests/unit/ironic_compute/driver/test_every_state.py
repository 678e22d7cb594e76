# SPDX-License-Identifier: Apache-2.0
"""Every operation in every provision state of the installed Ironic.

In bug 2131960 a delete in an unexpected state removed the metadata and left
the machine deployed. The states are therefore read from Ironic itself, and a
state without a row in the table fails the test.
"""

import threading

import pytest
from nova import exception as nova_exception
from nova.compute import power_state

from resource_tracker.provider import Situation, wanted_provider
from tests.fakes import ironic_machine

from . import fake, timed

# A state that this Ironic does not have; a later one may have new states.
_INVENTED = 'brand new state'

# The outcome of each operation on a node in each state. For spawn and stock
# the node has no server; for the other operations it has the server.
#
# passed     Nova builds on another node; this node was sent no request
# torn down  ``deleted`` was requested at once
# aborted    ``abort`` was requested, and then ``deleted``
# later      ``deleted`` was requested when Ironic's present work had ended
# waited     nothing was requested, because Ironic was removing the server
# given back VIFs, instance_info and the server's uuid were removed
# released   only the server's uuid was removed
# let be     Ironic cleans the node, and keeps the uuid until that ends
# held       Placement offers the node to no build
# busy       an error after all retries; the server has not changed
# refused    an error at once; the server has not changed
_TABLE = """
state          |spawn |destroy   |reboot |power  |rebuild |rescue |info|stock
active         |passed|torn down |done   |done   |deployed|rescued|on  |held
adopt failed   |passed|given back|done   |done   |refused |refused|on  |held
adopting       |passed|torn down |busy   |busy   |busy    |busy   |on  |held
available      |built |given back|done   |done   |refused |refused|on  |free
clean failed   |passed|released  |done   |done   |refused |refused|on  |held
clean hold     |passed|let be    |done   |done   |busy    |refused|on  |held
clean wait     |passed|let be    |refused|refused|busy    |refused|on  |held
cleaning       |passed|let be    |busy   |busy   |busy    |busy   |on  |held
deleting       |passed|waited    |busy   |busy   |busy    |busy   |on  |held
deploy failed  |passed|torn down |done   |done   |deployed|refused|on  |held
deploy hold    |passed|aborted   |done   |done   |busy    |refused|on  |held
deploying      |passed|later     |busy   |busy   |busy    |busy   |on  |held
enroll         |passed|given back|done   |done   |refused |refused|on  |held
error          |passed|torn down |done   |done   |deployed|refused|on  |held
inspect failed |passed|given back|done   |done   |refused |refused|on  |held
inspect wait   |passed|given back|done   |done   |refused |refused|on  |held
inspecting     |passed|given back|busy   |busy   |busy    |busy   |on  |held
manageable     |passed|given back|done   |done   |refused |refused|on  |held
rescue         |passed|torn down |done   |done   |refused |rescued|on  |held
rescue failed  |passed|torn down |done   |done   |refused |rescued|on  |held
rescue wait    |passed|torn down |done   |done   |busy    |rescued|on  |held
rescuing       |passed|later     |busy   |busy   |busy    |rescued|on  |held
service failed |passed|torn down |done   |done   |refused |rescued|on  |held
service hold   |passed|aborted   |done   |done   |refused |refused|on  |held
service wait   |passed|torn down |done   |done   |busy    |refused|on  |held
servicing      |passed|later     |busy   |busy   |busy    |busy   |on  |held
unrescue failed|passed|torn down |done   |done   |refused |rescued|on  |held
unrescuing     |passed|later     |busy   |busy   |busy    |busy   |on  |held
verifying      |passed|given back|busy   |busy   |busy    |busy   |on  |held
wait call-back |passed|torn down |done   |done   |busy    |refused|on  |held
brand new state|passed|torn down |done   |done   |refused |refused|on  |held
"""

# The state in which Ironic's present work ends; the feed updates the cache
# _FEED_DELAY_S later.
_ENDS = {
    'adopting': 'active',
    'cleaning': 'available',
    'deleting': 'cleaning',
    'deploying': 'active',
    'inspecting': 'manageable',
    'rescuing': 'rescue',
    'servicing': 'service failed',
    'unrescuing': 'active',
    'verifying': 'manageable',
}
_FEED_DELAY_S = 0.05

_DESTROYED = {
    (): 'waited',
    ('deleted',): 'torn down',
    ('deleted', 'deleted'): 'later',
    ('abort', 'deleted'): 'aborted',
    ('vif_detach', 'patch', 'release'): 'given back',
    ('release',): 'released',
}


def _read_table():
    header, *rows = (
        [cell.strip() for cell in line.split('|')]
        for line in _TABLE.strip().splitlines()
    )
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


_ROWS = _read_table()
_OPERATIONS = tuple(_ROWS['active'])[1:]


def _bench(state, operation):
    """Return a driver with a node in a state, with the server if needed."""
    has_server = operation not in ('spawn', 'stock')
    is_working = state in ironic_machine.WORKING
    # A rescue of a locked node waits for the lock.
    make = timed.bench if operation == 'rescue' else fake.bench
    bench = make(
        provision_state=state,
        reservation='conductor' if is_working else None,
        instance_uuid=fake.SERVER if has_server else None,
    )
    if has_server:
        bench.ironic.attached[fake.NODE] = [fake.VIF]
    return bench


def _spawn(bench):
    try:
        bench.spawn(fake.server())
    except nova_exception.ComputeResourcesUnavailable:
        return 'touched' if bench.ironic.calls else 'passed'
    return 'built'


def _destroy(bench):
    state = bench.ironic.nodes[fake.NODE].provision_state
    if state in _ENDS:
        bench.ironic.ends[fake.NODE] = _ENDS[state]
        threading.Timer(_FEED_DELAY_S, _end_work, [bench]).start()
    bench.driver.destroy(None, fake.server(), fake.network())
    if bench.ironic.nodes[fake.NODE].instance_uuid == fake.SERVER:
        return 'let be'
    return _DESTROYED[tuple(bench.ironic.names())]


def _end_work(bench):
    """End Ironic's present work, and update the node cache."""
    bench.ironic.settle(fake.NODE)
    bench.node_cache.update_facts(bench.ironic.nodes[fake.NODE])


def _reboot(bench):
    bench.driver.reboot(None, fake.server(), None, 'HARD')
    return 'done'


def _power(bench):
    bench.driver.power_off(fake.server())
    return 'done'


def _rebuild(bench):
    bench.rebuild(fake.unsaved_server(task_state='rebuilding'))
    return 'deployed'


def _rescue(bench):
    state = bench.ironic.nodes[fake.NODE].provision_state
    if state in ('rescuing', 'rescue wait'):  # An earlier worker began it.
        bench.ironic.change_after(
            60, provision_state='rescue', reservation=None
        )
    bench.driver.rescue(None, fake.server(), None, None, 'secret')
    return 'rescued'


def _info(bench):
    found = bench.driver.get_info(fake.server()).state
    return {power_state.RUNNING: 'on'}[found]


def _stock(bench):
    provider = wanted_provider(bench.ironic.nodes[fake.NODE], Situation())
    return 'held' if provider.inventory.reserved else 'free'


def _outcome(state, operation):
    bench = _bench(state, operation)
    try:
        return globals()[f'_{operation}'](bench)
    except nova_exception.NovaException as exc:
        facts = bench.ironic.nodes[fake.NODE]
        assert (facts.instance_uuid, facts.provision_state) == (
            fake.SERVER,
            state,
        )
        text = str(exc)
        is_busy = 'locked' in text or 'transition is in progress' in text
        return 'busy' if is_busy else 'refused'


@pytest.fixture
def machine():
    """Return the state machine of the installed Ironic."""
    found = pytest.importorskip('ironic.common.state_machine')
    return found.machine


def test_every_state_of_ironic_has_a_row(machine):
    """The table has a row for each state of the installed Ironic."""
    assert set(machine.states) | {_INVENTED} == set(_ROWS)


def test_fake_allows_the_same_transitions_as_ironic(machine):
    """The fake accepts each verb in the same states as Ironic."""
    states = pytest.importorskip('ironic.common.states')
    for verb, allowed in ironic_machine.ALLOWED.items():
        # These two targets are states and verbs at the same time.
        aliases = {'active': 'deploy', 'deleted': 'delete'}
        event = states.VERBS.get(verb, aliases.get(verb, verb))
        reached = {}
        for state in machine.states:
            trial = machine.copy()
            trial.initialize(state)
            if trial.is_actionable_event(event):
                trial.process_event(event)
                reached[state] = trial.current_state
        if verb == 'abort':  # See the comment at ALLOWED.
            reached.pop('wait call-back')
            reached.pop('inspect wait')
        assert reached == {state: ends[0] for state, ends in allowed.items()}


def test_fake_refuses_a_patch_in_the_same_states_as_ironic(machine):
    """A patch is a conflict (409) in the same states as in Ironic."""
    states = pytest.importorskip('ironic.common.states')
    closed = set(machine.states) - set(states.UPDATE_ALLOWED_STATES)
    closed -= set(states.STABLE_STATES)
    # Since its API 1.39 Ironic also refuses a patch during an inspection. A
    # node in "verifying" has no server, so the fake does not check it.
    assert closed | {'inspecting'} == set(ironic_machine.IN_TRANSITION)


@pytest.mark.parametrize('operation', _OPERATIONS)
@pytest.mark.parametrize('state', _ROWS)
def test_bug_2131960_every_operation_in_every_state(state, operation):
    """Each operation has the outcome that the table shows for the state."""
    assert _outcome(state, operation) == _ROWS[state][operation]
