# SPDX-License-Identifier: Apache-2.0
"""A server that has lost its host in Nova gets back the host of its node."""

import types
from typing import Any

import pytest
from nova import exception as nova_exception
from nova import objects
from nova.objects import base as objects_base

from ironic_compute.recovery.lost_hosts import LostHosts
from resource_tracker.node import NodeFacts, NodeId

NODE = NodeId('n1')
SERVER = '0b5d6a4e-5b0b-4ec3-9d0c-0c6a1d3a6c11'
LOST = {'vm_state': 'active', 'task_state': None, 'host': None, 'node': None}


class _Conductor:
    """nova-conductor, with the record of one server.

    :param then: what the record is when a save arrives
    """

    def __init__(self, row: dict[str, Any], then: dict[str, Any]) -> None:
        self.row = row
        self._then = then

    def object_class_action_versions(self, context: Any, *_: Any) -> Any:
        """Return the server as it is."""
        instance = objects.Instance(
            context, uuid=SERVER, deleted=False, **self.row
        )
        instance.obj_reset_changes()
        return instance

    def object_action(
        self, context: Any, instance: Any, method: str, _: Any, kwargs: Any
    ) -> Any:
        """Save as Nova's database does."""
        assert method == 'save'
        self.row.update(self._then)
        for name in ('vm_state', 'task_state'):
            if self.row[name] not in kwargs[f'expected_{name}']:
                raise nova_exception.InstanceUpdateConflict(
                    instance_uuid=SERVER, expected={}, actual={}
                )
        self.row.update(instance.obj_get_changes())
        return {'obj_what_changed': []}, None


def _restore(
    monkeypatch: pytest.MonkeyPatch,
    row: dict[str, Any] | None = None,
    facts: NodeFacts | None = None,
    then: dict[str, Any] | None = None,
    held: NodeId = NODE,
) -> dict[str, Any]:
    """Restore the host of a server; return its record."""
    objects.register_all()
    conductor = _Conductor({**LOST, **(row or {})}, then or {})
    monkeypatch.setattr(objects_base.NovaObject, 'indirection_api', conductor)
    rows = {held: types.SimpleNamespace(id=7)}
    held_nodes: Any = types.SimpleNamespace(host='c1', row=rows.get)
    client: Any = types.SimpleNamespace(
        read_node_of_instance=lambda server: facts
    )
    LostHosts(held_nodes, client).restore(NODE, SERVER)
    return conductor.row


def _node(state: str = 'active', node: NodeId = NODE) -> NodeFacts:
    return NodeFacts(node, provision_state=state, instance_uuid=SERVER)


@pytest.mark.parametrize('task_state', [None, 'deleting'])
@pytest.mark.parametrize('state', ['active', 'rescue'])
def test_host_and_node_are_restored(
    state: str,
    task_state: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A task stays, because recovery ends it when the host has the server."""
    row = _restore(monkeypatch, {'task_state': task_state}, _node(state))
    assert row == {
        'vm_state': 'active',
        'task_state': task_state,
        'host': 'c1',
        'launched_on': 'c1',
        'node': NODE,
        'compute_id': 7,
    }
    assert 'it has host c1 again' in caplog.text


@pytest.mark.parametrize(
    ('row', 'facts'),
    [
        ({'host': 'c2'}, _node()),
        ({'vm_state': 'shelved_offloaded'}, _node()),
        ({'vm_state': 'error'}, _node()),
        ({}, None),
        ({}, _node('deleting')),
        ({}, _node(node=NodeId('n2'))),
    ],
)
def test_server_that_has_not_lost_its_host_is_left_alone(
    row: dict[str, Any],
    facts: NodeFacts | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both services are read again, because the search may be old."""
    assert _restore(monkeypatch, dict(row), facts) == {**LOST, **row}


def test_node_that_is_not_held_any_more_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its new holder restores the host."""
    row = _restore(monkeypatch, facts=_node(), held=NodeId('n2'))
    assert row == LOST


def test_server_that_has_changed_just_now_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next round decides again from its new state."""
    row = _restore(monkeypatch, facts=_node(), then={'task_state': 'deleting'})
    assert row == {**LOST, 'task_state': 'deleting'}
    assert not caplog.text
