# SPDX-License-Identifier: Apache-2.0
"""Each fault of Ironic at each request of a build, a rebuild and a delete.

After any fault the server ends in the state that Nova documents for the
exception, the user reads one sentence, and the next delete of the server finds
and removes all that is left in Ironic. The outcomes are printed at the end of
the run.
"""

import pytest
from nova import exception as nova_exception

from ironic_compute.ironic_api.descriptions import HOST_KEY

from . import fake
from .faulty import FAULTS, FaultyIronic

# (operation, request) -> fault -> outcome; the run's summary prints it.
MATRIX: dict[tuple[str, str], dict[str, str]] = {}

# The action of Nova after each exception.
_OUTCOMES = {
    nova_exception.ComputeResourcesUnavailable: 'next',
    nova_exception.InstanceDeployFailure: 'next',
    nova_exception.BuildAbortException: 'abort',
    nova_exception.InstanceNotFound: 'absent',
    nova_exception.InstanceFaultRollback: 'kept',
    nova_exception.NovaException: 'error',
}


def _bench(operation):
    """Return a driver on an Ironic that can fail."""
    has_server = operation not in _BUILDS
    bench = fake.bench(
        provision_state='active' if has_server else 'available',
        instance_uuid=fake.SERVER if has_server else None,
    )
    if has_server:
        bench.ironic.attached[fake.NODE] = [fake.VIF]
        bench.ironic.targets['t'] = {
            'uuid': 't',
            'node_uuid': fake.NODE,
            'volume_id': fake.OTHER,
            'boot_index': 1,
        }
    return fake.on(FaultyIronic(bench.ironic), bench)


def _spawn(bench):
    bench.spawn(fake.unsaved_server(), [fake.Volume(1)])


def _boot(bench):
    volumes = [fake.Volume(0), fake.Volume(None, 'data')]
    bench.spawn(fake.unsaved_server(), volumes)


def _rebuild(bench):
    bench.rebuild(fake.unsaved_server(task_state='rebuilding'))


def _destroy(bench):
    bench.driver.destroy(None, fake.unsaved_server(), fake.network())


# A build with an image and a data volume, and a build with a root volume.
_BUILDS = {'spawn': _spawn, 'boot': _boot}
_OPERATIONS = {**_BUILDS, 'rebuild': _rebuild, 'destroy': _destroy}


def _requests(operation):
    bench = _bench(operation)
    _OPERATIONS[operation](bench)
    return list(bench.ironic.requests)


@pytest.mark.parametrize(
    ('operation', 'reads_count'), [('spawn', 5), ('destroy', 4)]
)
def test_operation_reads_its_node_only_a_few_times(operation, reads_count):
    """A build and a delete send few reads of the node.

    With hundreds of servers at once, Ironic's API is the bottleneck.
    """
    requests = _requests(operation)
    names = ('read_node', 'read_node_of_instance')
    assert sum(name in names for name in requests) == reads_count


_CASES = [
    pytest.param(
        operation, at, fault, id=f'{operation}-{at}-{name}-{fault.name}'
    )
    for operation in _OPERATIONS
    for at, name in enumerate(_requests(operation))
    for fault in FAULTS
]


def _run(bench, operation):
    """Run an operation; return its outcome and the sentence for the user."""
    try:
        _OPERATIONS[operation](bench)
    except nova_exception.NovaException as exc:
        kinds = [k for k in type(exc).__mro__ if k in _OUTCOMES]
        outcome = _OUTCOMES[kinds[0]]
        if outcome == 'next' and operation not in _BUILDS:
            outcome = 'error'
        return outcome, str(exc)
    return 'ok', ''


def _left(bench):
    """Return the parts of the server that remain in Ironic."""
    ironic = bench.ironic
    facts = ironic.nodes.get(fake.NODE)
    if facts is None:
        return {}
    found = {
        'node': facts.instance_uuid,
        'vifs': ironic.attached[fake.NODE],
        'targets': ironic.targets,
        'info': ironic.infos[fake.NODE],
    }
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize(('operation', 'at', 'fault'), _CASES)
def test_operation_ends_well_after_a_fault(operation, at, fault):
    """The server ends in a documented state, and nothing of it is left."""
    bench = _bench(operation)
    bench.ironic.at, bench.ironic.fault = at, fault
    outcome, sentence = _run(bench, operation)
    row = f'{at:2} {bench.ironic.requests[at]}'
    MATRIX.setdefault((operation, row), {})[fault.name] = outcome
    _assert_sentence(outcome, sentence)
    if operation == 'rebuild':
        facts = bench.ironic.nodes.get(fake.NODE)
        assert facts is None or facts.instance_uuid == fake.SERVER
        assert outcome in ('ok', 'kept', 'error')
        if outcome == 'kept':
            assert bench.ironic.nodes[fake.NODE].provision_state == 'active'
            assert bench.ironic.infos[fake.NODE].keys() == {HOST_KEY}
            assert bench.ironic.changed_at == {}, 'no deploy has begun'
    elif outcome == 'ok' and operation in _BUILDS:
        assert bench.ironic.nodes[fake.NODE].provision_state == 'active'
        assert set(_left(bench)) == {'node', 'vifs', 'targets', 'info'}
    else:
        if operation == 'destroy' and outcome != 'ok':
            _destroy(bench)  # As the recovery, or the user, does.
        assert not _left(bench)


@pytest.mark.parametrize('fault', [f for f in FAULTS if f.may_last], ids=str)
@pytest.mark.parametrize('at', range(_requests('spawn').index('active') + 1))
def test_build_ends_during_a_lasting_fault(at, fault):
    """A build ends within 1,000 s, and a later delete removes the rest."""
    bench = _bench('spawn')
    bench.ironic.at, bench.ironic.fault = at, fault
    bench.ironic.is_lasting = True
    began_s = bench.clock.now_s()
    outcome, sentence = _run(bench, 'spawn')
    _assert_sentence(outcome, sentence)
    assert outcome == 'next'
    assert bench.clock.now_s() - began_s < 1000
    bench.ironic.at = None
    _destroy(bench)
    assert not _left(bench)


def _assert_sentence(outcome, sentence):
    assert (outcome == 'ok') == (sentence == '')
    assert '\n' not in sentence
    assert 'Traceback' not in sentence


def test_matrix_is_large_enough():
    """The matrix has at least four hundred cases."""
    assert len(_CASES) >= 400
