# SPDX-License-Identifier: Apache-2.0
"""The steps of a migration in words, with the commands of each tool."""

import pytest

from hashring.ring import Host
from ironic_compute.cmd.migration_plan import (
    Action,
    Found,
    HostState,
    ServedBy,
    Step,
    plan_pool,
    plan_way_back,
)
from ironic_compute.cmd.migration_words import (
    Tool,
    describe,
    fit,
    guess_tool,
    kolla_container,
)

X, Y, Z = map(Host, ('x-ironic', 'y-ironic', 'z-ironic'))
STOCK = HostState(
    served_by=ServedBy.NOVA_COMPUTE, nodes_count=4, servers_count=3
)
OURS = HostState(
    served_by=ServedBy.DAEMON, is_known=True, machine='m1', nodes_count=4
)


def _found(state: HostState, *hosts: Host, has_group: bool = False) -> Found:
    return Found('a pool', dict.fromkeys(hosts, state), has_group=has_group)


@pytest.mark.parametrize('tool', Tool)
@pytest.mark.parametrize('action', Action)
def test_each_step_has_all_words(action: Action, tool: Tool) -> None:
    """The operator sees where, what, why, the result and the way back."""
    words = describe(Step(action, (X,)), _found(STOCK, X), tool)
    assert all((words.where, words.do, words.why, words.then, words.undo))


def test_step_names_what_is_at_stake() -> None:
    """The counts show that the right host is meant."""
    words = describe(
        Step(Action.STOP_NOVA_COMPUTE, (X,)), _found(STOCK, X), Tool.SYSTEMD
    )
    assert 'host x-ironic, with 4 nodes and 3 servers' in words.why
    assert words.do == 'systemctl disable --now nova-compute.service'
    assert words.undo == 'systemctl enable --now nova-compute.service'
    assert words.where == 'controller of x-ironic'


def test_daemon_is_stopped_on_its_machine() -> None:
    """The pool knows where the daemon of a host runs."""
    words = describe(
        Step(Action.STOP_DAEMON, (X,)), _found(OURS, X), Tool.SYSTEMD
    )
    assert words.where == 'm1'


def test_nova_computes_of_a_group_need_their_peers() -> None:
    """nova-compute does not start without the list."""
    step = Step(Action.START_NOVA_COMPUTE, (X,))
    found = _found(OURS, X, has_group=True)
    assert 'peer_list' in describe(step, found, Tool.SYSTEMD).why
    found = _found(OURS, X)
    assert 'peer_list' not in describe(step, found, Tool.SYSTEMD).why


def test_kolla_starts_all_containers_at_once() -> None:
    """Its deployment goes over all controllers."""
    found = _found(STOCK, X, Y)
    plan = fit(plan_pool(found, frozenset({X, Y, Z})), Tool.KOLLA)
    assert plan == (
        Step(Action.STOP_NOVA_COMPUTE, (X,)),
        Step(Action.STOP_NOVA_COMPUTE, (Y,)),
        Step(Action.START_DAEMON, (X, Y)),
        Step(Action.ADD_DAEMON, (Z,)),
        Step(Action.MAP_HOSTS, (Z,)),
    )
    words = describe(plan[2], found, Tool.KOLLA)
    assert words.where == 'the deployment host'
    assert words.do.startswith('kolla-ansible deploy -i INVENTORY --tags ')


def test_kolla_stops_all_daemons_before_the_way_back() -> None:
    """The last step of them starts all nova-computes."""
    plan = fit(plan_way_back(_found(OURS, X, Y)), Tool.KOLLA)
    assert plan == (
        Step(Action.STOP_DAEMON, (X,)),
        Step(Action.STOP_DAEMON, (Y,)),
        Step(Action.START_NOVA_COMPUTE, (X, Y)),
        Step(Action.DELETE_QUEUES, (X, Y)),
    )


@pytest.mark.parametrize(
    'action', [Action.STOP_NOVA_COMPUTE, Action.STOP_DAEMON]
)
def test_kolla_stops_the_unit_of_the_container(action: Action) -> None:
    """systemd starts a container again that docker has stopped."""
    words = describe(Step(action, (X,)), _found(OURS, X), Tool.KOLLA)
    unit = 'kolla-nova_compute_ironic-container.service'
    assert words.do == f'systemctl stop {unit}'


@pytest.mark.parametrize(
    ('service', 'container'),
    [
        ('nova-compute-ironic-2', 'nova_compute_ironic_2'),
        ('nova-compute-ironic', 'nova_compute_ironic'),
        ('nova-conductor', 'nova_compute_ironic'),
    ],
)
def test_kolla_numbers_the_containers_of_several_computes(
    service: str, container: str
) -> None:
    """All pools of a controller would be stopped, or none."""
    name = kolla_container({'KOLLA_SERVICE_NAME': service})
    stop, adopt = (
        describe(Step(action, (X,)), _found(OURS, X), Tool.KOLLA, name).do
        for action in (Action.STOP_DAEMON, Action.ADOPT_HOST)
    )
    assert stop == f'systemctl stop kolla-{container}-container.service'
    assert adopt.startswith(f'docker exec {container} ironic-computectl ')


@pytest.mark.parametrize(
    ('tool', 'stops'), [(Tool.KOLLA, True), (Tool.SYSTEMD, False)]
)
def test_retired_daemon_of_kolla_is_stopped_before(
    tool: Tool, stops: bool
) -> None:
    """It would be started again, and its host would come back."""
    step = Step(Action.RETIRE_HOST, (X,))
    words = describe(step, _found(OURS, X), tool)
    assert ('Before, on m1: systemctl stop ' in words.why) is stops


@pytest.mark.parametrize(
    ('hosts', 'tool'),
    [
        (['x-ironic', 'y-ironic'], Tool.KOLLA),
        (['x-ironic', 'c2'], Tool.SYSTEMD),
        ([], Tool.SYSTEMD),
    ],
)
def test_names_of_hosts_show_the_tool(hosts: list[str], tool: Tool) -> None:
    """Kolla Ansible appends the same word to each name."""
    assert guess_tool(map(Host, hosts)) is tool
