# SPDX-License-Identifier: Apache-2.0
"""Interrupted deploys continue if Ironic has started them, or end."""

from collections.abc import Iterator
from typing import Any

import nova.conf
import pytest
from nova import objects
from nova.compute import power_state, vm_states
from nova.compute import task_states as tasks
from nova.network import model
from nova.virt import configdrive
from oslo_config import fixture

from ironic_compute import errors
from ironic_compute.nodes import records
from ironic_compute.recovery.failures import TaskFailures
from resource_tracker.node import NodeFacts

from .interrupted import (
    SHELVED,
    ResumesOne,
    at_hour,
    check_twice,
    make_node,
    make_server,
)


@pytest.fixture
def conf() -> Iterator[Any]:
    """Return nova.conf, whose options are as before after the test."""
    with fixture.Config(nova.conf.CONF) as config:
        yield config


@pytest.mark.parametrize('node', [None, make_node('available')])
def test_unshelving_that_never_reached_ironic_is_undone(
    node: NodeFacts | None,
) -> None:
    """If Ironic never started the deploy, the server is shelved again."""
    server = make_server(SHELVED, tasks.SPAWNING)
    check_twice(ResumesOne(server, node))
    assert server.done[:2] == ['node freed', 'saved None None']
    assert (server.vm_state, server.key_data) == (SHELVED, 'ssh-rsa')


@pytest.mark.parametrize('state', ['wait call-back', 'service wait', 'rescue'])
def test_unshelving_that_ironic_has_started_is_waited_for(state: str) -> None:
    """If Ironic has started the deploy, the server becomes ACTIVE.

    An operator may service or rescue the node while no worker runs.
    """
    server = make_server(SHELVED, tasks.SPAWNING)
    check_twice(ResumesOne(server, make_node(state)))
    assert server.done[:2] == ['waited', 'saved c1 None']
    assert (server.vm_state, server.key_data) == ('active', 'ssh-rsa')


def test_deploy_of_another_user_of_ironic_is_not_waited_for() -> None:
    """The worker was killed when it had just reserved the node.

    The unshelved server was ACTIVE on a machine that runs something else.
    """
    server = make_server(SHELVED, tasks.SPAWNING)
    recovery = ResumesOne(server, make_node('active'))
    recovery.info = {'image_source': 'theirs'}
    check_twice(recovery)
    assert server.done[:2] == ['node freed', 'saved None None']
    assert server.vm_state == SHELVED


def test_finished_deploy_leaves_a_running_server() -> None:
    """Its power state is RUNNING, and its launch has a time."""
    server = make_server(SHELVED, tasks.SPAWNING)
    server.power_state = power_state.NOSTATE
    check_twice(ResumesOne(server, make_node('wait call-back')))
    assert server.power_state == power_state.RUNNING
    assert server.launched_at is not None


@pytest.mark.parametrize(
    ('vm_state', 'task_state'),
    [
        (vm_states.BUILDING, tasks.SPAWNING),
        (vm_states.STOPPED, tasks.REBUILD_SPAWNING),
        (SHELVED, tasks.SPAWNING),
    ],
)
@pytest.mark.parametrize('fails', [False, True])
def test_others_are_told_of_the_end_of_a_deploy(
    vm_state: str, task_state: str, monkeypatch: Any, *, fails: bool
) -> None:
    """A deploy that has failed is not reported as one that has ended."""
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc', lambda *args: None
    )
    server = make_server(vm_state, task_state)
    recovery = ResumesOne(server, make_node('deploying'))
    recovery.deploy_fails = fails
    check_twice(recovery)
    told = [] if fails else [(server, vm_state)]
    assert recovery.reported[:1] == told


def test_finished_deploy_keeps_the_time_of_the_launch() -> None:
    """An unshelved server was launched before."""
    server = make_server(SHELVED, tasks.SPAWNING)
    server.launched_at = launched_at = at_hour(1)
    check_twice(ResumesOne(server, make_node('wait call-back')))
    assert server.launched_at == launched_at


@pytest.mark.parametrize('node', ['n2', None])
@pytest.mark.parametrize(
    ('vm_state', 'done'),
    [
        (vm_states.BUILDING, ['build freed', 'saved c1 None']),
        (SHELVED, ['node freed', 'saved None None']),
    ],
)
def test_deploy_of_another_node_than_the_server_has_in_nova_is_ended(
    vm_state: str,
    done: list[str],
    node: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could not be undone, and the server got another node since, or none.

    The server would be ACTIVE on a node that was never deployed, and would
    keep both nodes.
    """
    monkeypatch.setattr(
        'nova.compute.utils.add_instance_fault_from_exc', lambda *args: None
    )
    server = make_server(vm_state, tasks.SPAWNING)
    server.node = node
    check_twice(ResumesOne(server, make_node('active')))
    assert server.done[:2] == done
    assert server.vm_state != vm_states.ACTIVE


def test_unshelving_that_failed_in_ironic_loses_nothing() -> None:
    """If the deploy fails in Ironic, the server is shelved as before."""
    server = make_server(SHELVED, tasks.SPAWNING)
    interrupted = ResumesOne(server, make_node('deploying'))
    interrupted.deploy_fails = True
    check_twice(interrupted)
    assert server.done[:3] == ['waited', 'node freed', 'saved None None']
    assert server.vm_state == SHELVED


_AWAY = errors.IronicNotReached('connection refused')


@pytest.mark.parametrize(
    ('error', 'vm_state', 'count'),
    [(errors.TeardownFailed('the BMC is dead'), 'error', 1), (_AWAY, None, 9)],
)
@pytest.mark.parametrize(
    ('former', 'task_state', 'node'),
    [
        (SHELVED, tasks.SPAWNING, 'deploying'),
        (SHELVED, tasks.SPAWNING, 'available'),
        (vm_states.ACTIVE, tasks.SHELVING_OFFLOADING, 'error'),
    ],
)
def test_broken_machine_is_not_torn_down_in_each_round(
    former: str,
    task_state: str,
    node: str,
    error: errors.IronicComputeError,
    vm_state: str | None,
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be broken for months; without Ironic, the server waits."""
    for name in ('add_instance_fault_from_exc', 'is_volume_backed_instance'):
        monkeypatch.setattr(f'nova.compute.utils.{name}', lambda *args: True)
    server = make_server(former, task_state)
    interrupted = ResumesOne(server, make_node(node))
    interrupted.deploy_fails, interrupted.teardown_error = True, error
    for _ in range(10):
        interrupted.check()
    assert server.done.count('not freed') == count
    assert server.vm_state == (vm_state or former)
    assert (server.host, server.node) == ('c1', 'n1')


class _Failed(TaskFailures):
    """Records a failure without a database."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def fail_task(self, context: Any, instance: Any, sentence: str) -> None:
        self._done.append(sentence)


@pytest.mark.parametrize(
    ('task_state', 'node', 'changed_at', 'is_done'),
    [
        (tasks.REBUILD_SPAWNING, 'active', '2026-11-02T07:05:00+00:00', True),
        (tasks.REBUILD_SPAWNING, 'active', '2026-11-02T06:55:00+00:00', False),
        (tasks.REBUILD_SPAWNING, 'active', None, False),
        (tasks.REBUILDING, 'active', '2026-11-02T07:05:00+00:00', False),
        (tasks.REBUILD_SPAWNING, 'deploying', None, True),
        (tasks.REBUILDING, 'deploying', None, True),
        (tasks.REBUILD_SPAWNING, 'available', None, False),
        # An operator has the node serviced, or rescued, since its rebuild.
        (
            tasks.REBUILD_SPAWNING,
            'service wait',
            '2026-11-02T07:05:00+00:00',
            True,
        ),
        (tasks.REBUILD_SPAWNING, 'rescue', '2026-11-02T07:05:00+00:00', True),
        (tasks.REBUILD_SPAWNING, 'rescue', '2026-11-02T06:55:00+00:00', False),
        (tasks.REBUILDING, 'servicing', '2026-11-02T07:05:00+00:00', False),
        # A former rebuild had failed, and the new one was not begun.
        (tasks.REBUILDING, 'deploy failed', None, False),
        (
            tasks.REBUILD_SPAWNING,
            'deploy failed',
            '2026-11-02T06:55:00+00:00',
            False,
        ),
        (
            tasks.REBUILD_SPAWNING,
            'deploy failed',
            '2026-11-02T07:05:00+00:00',
            True,
        ),
    ],
)
def test_a_rebuild_is_done_only_if_the_node_was_deployed_since(
    task_state: str, node: str, changed_at: str | None, is_done: bool
) -> None:
    """An active node proves a rebuild only if its state changed since.

    Otherwise the user would believe that the old disk is the new one.
    """
    server = make_server(vm_states.ACTIVE, task_state)
    interrupted = ResumesOne(server, make_node(node))
    interrupted._deploys._failures = _Failed(server.done)
    interrupted.changed_at = changed_at
    check_twice(interrupted)
    assert ('waited' in server.done) is is_done
    assert any('rebuild it again' in it for it in server.done) is not is_done


@pytest.mark.parametrize(
    ('before', 'now', 'is_done'),
    [
        # Ironic's clock is five minutes ahead; the rebuild was not begun.
        ('2026-11-02T07:04:00+00:00', '2026-11-02T07:04:00+00:00', False),
        # It is five minutes behind; the rebuild took two.
        ('2026-11-01T20:00:00+00:00', '2026-11-02T06:57:00+00:00', True),
        # It was set back between the two deploys.
        ('2026-11-02T07:04:00+00:00', '2026-11-02T06:57:00+00:00', True),
        # Another version of Ironic writes the same time.
        ('2026-11-02T07:04:00+00:00', '2026-11-02T07:04:00Z', False),
        ('', '2026-11-02T07:04:00+00:00', True),
        ('2026-11-02T07:04:00+00:00', None, False),
    ],
)
def test_a_rebuild_is_done_by_the_clock_of_ironic_alone(
    before: str, now: str | None, *, is_done: bool
) -> None:
    """The user requested it at seven, by the clock of Nova."""
    server = make_server(vm_states.ACTIVE, tasks.REBUILD_SPAWNING)
    records.note_before_rebuild(server, before)
    interrupted = ResumesOne(server, make_node('active'))
    interrupted._deploys._failures = _Failed(server.done)
    interrupted.changed_at = now
    interrupted.check()
    assert records.before_rebuild(server) == before
    interrupted.check()
    assert records.before_rebuild(server) is None
    assert ('waited' in server.done) is is_done
    assert any('rebuild it again' in it for it in server.done) is not is_done


@pytest.mark.parametrize('vm_state', [vm_states.BUILDING, SHELVED])
def test_build_that_a_delete_ends_is_left_to_the_delete(
    vm_state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A build that ends because of a delete is neither saved nor freed."""
    server = make_server(vm_state, tasks.SPAWNING)
    interrupted = ResumesOne(server, make_node('deploying'))
    interrupted.is_deleted = True
    caplog.set_level('INFO')
    interrupted.check()
    interrupted.check()
    assert 'has another task now' in caplog.text
    assert set(server.done) <= {'waited'}
    assert server.task_state == tasks.DELETING


@pytest.mark.parametrize(
    ('vm_state', 'task_state'),
    [
        (vm_states.BUILDING, tasks.SPAWNING),
        (vm_states.ACTIVE, tasks.REBUILD_SPAWNING),
        (SHELVED, tasks.SPAWNING),
    ],
)
def test_a_deploy_is_not_ended_while_ironic_is_unreachable(
    vm_state: str, task_state: str
) -> None:
    """If Ironic cannot be reached, the next round waits for the deploy."""
    server = make_server(vm_state, task_state)
    interrupted = ResumesOne(server, make_node('deploying'))
    interrupted.is_away = True
    check_twice(interrupted)
    assert set(server.done) == {'waited'}
    assert (server.vm_state, server.task_state) == (vm_state, task_state)
    interrupted.is_away = False
    interrupted.check()
    assert (server.vm_state, server.task_state) == (vm_states.ACTIVE, None)


@pytest.mark.parametrize(
    ('ports', 'ends'),
    [
        (['p1', 'p2'], ['saved c1 None']),
        (['p2'], ['saved c1 None']),  # The user has deleted the other.
        ([], ['build freed']),
        (['p3'], ['build freed']),
    ],
)
def test_a_build_without_ports_is_ended_instead_of_active(
    ports: list[str], ends: list[str]
) -> None:
    """A build whose ports are all gone had failed, so it is ended."""
    server = make_server(vm_states.BUILDING, tasks.SPAWNING)
    interrupted = ResumesOne(server, make_node('active'))
    interrupted.ports = ports
    check_twice(interrupted)
    assert server.done[:2] == ['waited', *ends]


def test_server_that_was_stopped_is_stopped_after_its_rebuild() -> None:
    """Nova does so, too; recovery does the stop in a later round."""
    server = make_server(vm_states.STOPPED, tasks.REBUILD_SPAWNING)
    check_twice(ResumesOne(server, make_node('deploying')))
    assert server.done[:2] == ['waited', 'saved c1 powering-off']
    assert server.vm_state == vm_states.ACTIVE


def test_server_keeps_the_config_drive_that_nova_conf_forces(
    conf: Any,
) -> None:
    """A rebuild made none, so the machine had neither networks nor keys.

    ``force_config_drive`` counts only until the first launch.
    """
    conf.config(force_config_drive=True)
    server = make_server(vm_states.BUILDING, tasks.SPAWNING)
    server.config_drive = ''
    server.image_meta = objects.ImageMeta.from_dict({})
    check_twice(ResumesOne(server, make_node('active')))
    assert server.vm_state == vm_states.ACTIVE
    assert configdrive.required_by(server)


def _vif(port: str, label: str, *addresses: str) -> model.VIF:
    subnet = model.Subnet(ips=[model.FixedIP(address=it) for it in addresses])
    return model.VIF(
        id=port, network=model.Network(label=label, subnets=[subnet])
    )


@pytest.mark.parametrize(
    ('name', 'addresses'),
    [
        ('public', ('192.0.2.1', '2001:db8::1')),
        ('other', (None, None)),
        (None, (None, None)),
    ],
)
def test_server_has_the_access_addresses_that_nova_conf_names(
    name: str | None, addresses: tuple[str | None, str | None], conf: Any
) -> None:
    """Only builds that were not interrupted had them."""
    conf.config(default_access_ip_network_name=name)
    server = make_server(vm_states.BUILDING, tasks.SPAWNING)
    server.access_ip_v4 = server.access_ip_v6 = None
    vifs = [
        model.VIF(id='p1'),
        _vif('p2', 'public', '192.0.2.1', '192.0.2.2', '2001:db8::1'),
        _vif('p3', 'public', '192.0.2.3'),
    ]
    server.get_network_info = lambda: model.NetworkInfo(vifs)
    check_twice(ResumesOne(server, make_node('active')))
    assert (server.access_ip_v4, server.access_ip_v6) == addresses
