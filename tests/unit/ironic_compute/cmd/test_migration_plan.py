# SPDX-License-Identifier: Apache-2.0
"""The plan from nova-computes to a pool, and back, in a cloud of values."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashring.ring import Host
from ironic_compute.cmd.migration_plan import (
    Action,
    Found,
    HostState,
    Plan,
    ServedBy,
    Step,
    plan_pool,
    plan_way_back,
)
from ironic_compute.cmd.nova_access import NovaRefused

A, B, C, D = map(Host, 'abcd')
STOCK = HostState(
    served_by=ServedBy.NOVA_COMPUTE,
    is_mapped=True,
    nodes_count=2,
    servers_count=1,
)
DOWN = dataclasses.replace(STOCK, served_by=ServedBy.NOBODY)
OURS = dataclasses.replace(
    STOCK, served_by=ServedBy.DAEMON, is_known=True, machine='m'
)
ADOPTED = dataclasses.replace(OURS, machine=None)
OTHER_POOL = dataclasses.replace(STOCK, served_by=ServedBy.OTHER_POOL)
NEW = HostState(exists=False)


def _found(**hosts: HostState) -> Found:
    return Found('a pool', {Host(name): s for name, s in hosts.items()})


def _shown(plan: Plan) -> list[str]:
    return [f'{s.action.name} {" ".join(s.hosts)}' for s in plan]


class Cloud:
    """A cloud in which an operator carries out steps.

    It refuses a step for which the manual says that it does harm.
    """

    def __init__(self, found: Found, wanted: frozenset[Host]) -> None:
        self.found = found
        self._wanted = wanted

    def carry_out(self, step: Step) -> None:
        """Do what a step says."""
        hosts = dict(self.found.hosts)
        for host in step.hosts:
            before = hosts.get(host, NEW)
            after = self._done(step.action, before)
            if after is None:
                del hosts[host]
            else:
                hosts[host] = after
        if step.action is Action.STOP_DAEMON:
            hosts = self._without_pool(hosts)
        if step.action is Action.RETIRE_HOST:
            self._take_over(hosts, self.found.state(step.hosts[0]))
        self.found = dataclasses.replace(self.found, hosts=hosts)

    def _take_over(
        self, hosts: dict[Host, HostState], gone: HostState
    ) -> None:
        """Give what a retired host had to another host of the pool."""
        heir = next(h for h, s in sorted(hosts.items()) if s.machine)
        hosts[heir] = dataclasses.replace(
            hosts[heir],
            nodes_count=hosts[heir].nodes_count + gone.nodes_count,
            servers_count=hosts[heir].servers_count + gone.servers_count,
        )

    def _without_pool(
        self, hosts: dict[Host, HostState]
    ) -> dict[Host, HostState]:
        """Let what the last daemon knew and served go with it."""
        if any(state.machine for state in hosts.values()):
            return hosts
        return {
            host: dataclasses.replace(
                state,
                is_known=False,
                served_by=ServedBy.NOBODY
                if state.served_by is ServedBy.DAEMON
                else state.served_by,
            )
            for host, state in hosts.items()
            if host in self._wanted or not state.is_empty
        }

    def _done(self, action: Action, before: HostState) -> HostState | None:
        change: Callable[..., HostState] = dataclasses.replace
        match action:
            case Action.STOP_NOVA_COMPUTE:
                assert before.may_run_nova_compute
                is_ours = before.served_by is ServedBy.DAEMON
                left = ServedBy.DAEMON if is_ours else ServedBy.NOBODY
                return change(before, served_by=left, is_doubled=False)
            case Action.START_DAEMON | Action.ADD_DAEMON:
                return self._started(action, before)
            case Action.MARK_UP:
                return change(before, is_forced_down=False)
            case Action.MAP_HOSTS:
                return change(before, is_mapped=True)
            case Action.ADOPT_HOST:
                assert before.served_by is ServedBy.NOBODY
                assert self.found.daemons
                return change(before, served_by=ServedBy.DAEMON, is_known=True)
            case Action.RETIRE_HOST:
                assert before.is_known
                assert len(self.found.daemons) > bool(before.machine)
                return None
            case Action.UNDRAIN_HOST:
                assert before.served_by is ServedBy.DAEMON
                return change(before, is_drained=False)
            case Action.ENABLE_HOST:
                assert not self.found.daemons
                return change(before, is_drained=False)
            case Action.AWAIT_TASKS:
                return change(before, tasks_count=0)
            case Action.STOP_DAEMON:
                return change(before, machine=None, served_by=ServedBy.NOBODY)
            case Action.START_NOVA_COMPUTE:
                assert not self.found.daemons, 'they would share nodes'
                assert before.exists
                assert not before.is_forced_down
                return change(before, served_by=ServedBy.NOVA_COMPUTE)
            case _:
                return before

    def _started(self, action: Action, before: HostState) -> HostState:
        assert not before.may_run_nova_compute, 'two would serve the host'
        assert not before.is_forced_down
        assert before.exists is (action is Action.START_DAEMON)
        # A daemon adopts each host that it remembers and that has none.
        assert not any(
            state.may_run_nova_compute for state in self.found.hosts.values()
        )
        return dataclasses.replace(
            before,
            exists=True,
            served_by=ServedBy.DAEMON,
            is_known=True,
            machine='m',
            is_mapped=before.is_mapped if before.exists else False,
        )


_COUNTS = {
    'nodes_count': st.integers(0, 3),
    'servers_count': st.integers(0, 3),
}
_MAPPED = st.sampled_from([True, None, False])
_ANY_STOCK = st.builds(
    HostState,
    served_by=st.sampled_from([*[*ServedBy][1:3], ServedBy.NOBODY]),
    is_forced_down=st.booleans(),
    is_mapped=_MAPPED,
    **_COUNTS,
)
_ANY_OURS = st.builds(
    HostState,
    is_doubled=st.booleans(),
    served_by=st.just(ServedBy.DAEMON),
    is_known=st.just(True),
    machine=st.sampled_from(['m', None]),
    is_drained=st.booleans(),
    is_mapped=_MAPPED,
    tasks_count=st.integers(0, 2),
    **_COUNTS,
)
# Nothing shows whether these are done.
_UNSEEN = {Action.DELETE_QUEUES}
_HOSTS = st.sampled_from([A, B, C])


def _is_possible(hosts: Mapping[Host, HostState]) -> bool:
    """Return whether a daemon is up if one serves a host."""
    served = [s for s in hosts.values() if s.served_by is ServedBy.DAEMON]
    return not served or any(state.machine for state in served)


_WANTED = st.frozensets(st.sampled_from([A, B, C, D]))


def _carry_out_all(
    found: Found, plan: Callable[[Found, frozenset[Host]], Plan], wanted: Any
) -> Found:
    """Carry out a plan; the plan after each step must be its rest."""
    cloud = Cloud(found, wanted)
    left = plan(found, wanted)
    while left:
        cloud.carry_out(left[0])
        rest = plan(cloud.found, wanted)
        if rest:
            assert _shown(rest) == _shown(left[1:])
        else:
            assert {step.action for step in left[1:]} <= _UNSEEN
        left = rest
    return cloud.found


@given(
    st.dictionaries(_HOSTS, _ANY_STOCK | _ANY_OURS, min_size=1).filter(
        _is_possible
    ),
    _WANTED,
)
def test_plan_leads_to_a_pool(
    hosts: Mapping[Host, HostState], wanted: frozenset[Host]
) -> None:
    """Each step is allowed when it comes, and then nothing is left."""
    found = Found('a pool', hosts)
    end = _carry_out_all(found, plan_pool, wanted)
    assert plan_pool(end, wanted) == plan_pool(end) == ()
    assert all(s.served_by is ServedBy.DAEMON for s in end.hosts.values())
    assert not wanted or frozenset(end.hosts) == wanted


def test_one_nova_compute_becomes_three_daemons() -> None:
    """Its host keeps the name, and new hosts come when it is served."""
    plan = plan_pool(_found(a=STOCK), frozenset({A, B, C}))
    assert _shown(plan) == [
        'STOP_NOVA_COMPUTE a',
        'START_DAEMON a',
        'ADD_DAEMON b',
        'ADD_DAEMON c',
        'MAP_HOSTS b c',
    ]


def test_no_nova_compute_runs_when_the_first_daemon_starts() -> None:
    """It may remember all of these hosts, and would adopt them."""
    plan = plan_pool(_found(a=STOCK, b=STOCK))
    assert _shown(plan) == [
        'STOP_NOVA_COMPUTE a',
        'STOP_NOVA_COMPUTE b',
        'START_DAEMON a',
        'START_DAEMON b',
    ]


@given(
    st.dictionaries(_HOSTS, _ANY_OURS, min_size=1).filter(_is_possible),
    st.frozensets(_HOSTS),
    st.booleans(),
)
def test_plan_leads_back(
    hosts: Mapping[Host, HostState], wanted: frozenset[Host], has_shard: bool
) -> None:
    """No nova-compute starts while a daemon runs; then nothing is left."""
    found = Found('a pool', hosts, has_shard=has_shard)
    try:
        plan_way_back(found, wanted)
    except NovaRefused:
        return  # Then nothing is begun.
    end = _carry_out_all(found, plan_way_back, wanted)
    assert plan_way_back(end, wanted) == ()
    stock = {s.served_by for s in end.hosts.values()}
    assert stock == {ServedBy.NOVA_COMPUTE}
    assert not wanted or frozenset(end.hosts) == wanted


def test_servers_move_before_the_daemons_stop() -> None:
    """Only daemons can move them to the host that remains."""
    plan = plan_way_back(_found(a=OURS, b=OURS, c=ADOPTED), frozenset({A}))
    assert _shown(plan) == [
        'RETIRE_HOST b',
        'RETIRE_HOST c',
        'STOP_DAEMON a',
        'START_NOVA_COMPUTE a',
        'DELETE_QUEUES a',
    ]


@pytest.mark.parametrize('state', [DOWN, STOCK])
def test_drain_ends_on_the_way_back_without_a_daemon(
    state: HostState,
) -> None:
    """Nothing would be offered by a nova-compute whose host is disabled."""
    found = _found(a=STOCK, b=dataclasses.replace(state, is_drained=True))
    assert _shown(plan_way_back(found))[0] == 'ENABLE_HOST b'
    end = _carry_out_all(found, plan_way_back, frozenset())
    assert not any(each.is_drained for each in end.hosts.values())


def test_old_hosts_without_a_controller_are_adopted_and_retired() -> None:
    """Each is stopped before a daemon with a new name starts."""
    plan = plan_pool(_found(a=STOCK, b=STOCK), frozenset({A, D}))
    assert _shown(plan) == [
        'STOP_NOVA_COMPUTE a',
        'STOP_NOVA_COMPUTE b',
        'START_DAEMON a',
        'ADD_DAEMON d',
        'MAP_HOSTS d',
        'ADOPT_HOST b',
        'RETIRE_HOST b',
    ]


def test_nova_compute_beside_a_daemon_is_stopped() -> None:
    """A daemon has adopted its host."""
    doubled = dataclasses.replace(ADOPTED, is_doubled=True)
    plan = plan_pool(_found(a=OURS, b=doubled))
    assert _shown(plan) == ['STOP_NOVA_COMPUTE b']


def test_pool_whose_host_is_drained_is_finished() -> None:
    """Its operator wants that, unless the host is named."""
    found = _found(a=OURS, b=dataclasses.replace(OURS, is_drained=True))
    assert plan_pool(found) == ()
    named = plan_pool(found, frozenset({A, B}))
    assert _shown(named) == ['UNDRAIN_HOST b']


@pytest.mark.parametrize(
    ('hosts', 'wanted', 'sentence'),
    [
        ({}, '', 'No host in Nova holds a node of this pool'),
        ({'a': dataclasses.replace(STOCK, other_nodes_count=3)}, '', '3 o'),
        (
            {'a': OTHER_POOL},
            '',
            'a daemon that is not in this pool',
        ),
        (
            {'a': OURS, 'd': dataclasses.replace(STOCK, is_other=True)},
            'ad',
            'Host d has no nodes of Ironic',
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(
    hosts: dict[str, HostState], wanted: str, sentence: str
) -> None:
    """The sentence has the reason and what to do."""
    with pytest.raises(NovaRefused, match=sentence):
        plan_pool(_found(**hosts), frozenset(map(Host, wanted)))


@pytest.mark.parametrize(
    ('hosts', 'wanted', 'sentence'),
    [
        ({}, '', 'No host in Nova holds a node'),
        ({'a': OURS}, 'd', 'Nova has no host d'),
        ({'a': DOWN, 'b': DOWN}, 'a', 'no daemon is up that moves them'),
        ({'a': OURS, 'b': STOCK}, 'a', 'a nova-compute serves b'),
        ({'a': ADOPTED, 'b': OURS}, 'a', 'The daemons of a are not up'),
    ],
)
def test_way_back_that_loses_servers_is_refused(
    hosts: dict[str, HostState], wanted: str, sentence: str
) -> None:
    """The sentence has the reason and what to do."""
    with pytest.raises(NovaRefused, match=sentence):
        plan_way_back(_found(**hosts), frozenset(map(Host, wanted)))


def test_shard_has_one_nova_compute() -> None:
    """Each of several would take all free nodes of the shard."""
    found = dataclasses.replace(_found(a=OURS, b=OURS), has_shard=True)
    with pytest.raises(NovaRefused, match='--hosts a'):
        plan_way_back(found)
    assert plan_way_back(found, frozenset({B}))
