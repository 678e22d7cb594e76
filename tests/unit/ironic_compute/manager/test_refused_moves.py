# SPDX-License-Identifier: Apache-2.0
"""What was allocated for a refused move is given back, after an outage too."""

import contextlib
import json
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from keystoneauth1 import exceptions as ksa_exceptions
from nova import exception as nova_exception
from nova import objects, safe_utils
from nova.compute import manager as nova_manager
from nova.scheduler.client import report

from ironic_compute.manager import refused_moves, unsupported
from tests.fakes.clock import ManualClock

from ..driver import fake

objects.register_all()

_AWAY = ksa_exceptions.ConnectFailure('refused')
_HERE = {'node-1': {'resources': {'CUSTOM_BAREMETAL': 1}}}
_THERE = {'node-2': {'resources': {'CUSTOM_BAREMETAL': 1}}}


class _Answer(types.SimpleNamespace):
    """An answer of Placement."""

    headers: Mapping[str, str] = types.MappingProxyType({})

    def __bool__(self) -> bool:
        return bool(self.status_code < 400)

    def json(self) -> Any:
        """Return the body."""
        return json.loads(self.text)


# What keystoneauth raises, or what it returns in place of Placement's answer.
_Failure = Exception | _Answer | None


def _answer(status: int, body: Any = None) -> _Answer:
    return _Answer(status_code=status, text=json.dumps(body))


class _Placement:
    """keystoneauth's end of the way to a Placement with allocations.

    :param failures: what the first requests end with; None: an answer
    """

    def __init__(
        self,
        allocations: dict[str, Any],
        *failures: _Failure,
        carries_out: Callable[[str], bool] = lambda method: False,
    ) -> None:
        self.additional_headers: dict[str, str] = {}
        self.allocations = allocations
        self._failures = list(failures)
        self._carries_out = carries_out

    def _send(self, method: str, act: Callable[[], _Answer]) -> _Answer:
        failure = self._failures.pop(0) if self._failures else None
        if failure is None or self._carries_out(method):
            answer = act()
        if isinstance(failure, Exception):
            raise failure
        return answer if failure is None else failure

    def get(self, url: str, **arguments: Any) -> _Answer:
        """Return the allocations of a consumer."""
        return self._send('get', lambda: self._read(url))

    def _read(self, url: str) -> _Answer:
        if url.startswith('/resource_providers'):
            node = url.partition('in_tree=')[2]
            return _answer(200, {'resource_providers': [{'uuid': node}]})
        found = self.allocations.get(url.rpartition('/')[2], {})
        known = {'project_id': 'p', 'user_id': 'u', 'consumer_generation': 1}
        return _answer(200, {'allocations': found, **(known if found else {})})

    def post(self, url: str, json: Any, **arguments: Any) -> _Answer:
        """Replace the allocations of several consumers."""
        return self._send('post', lambda: self._write(json))

    def put(self, url: str, json: Any, **arguments: Any) -> _Answer:
        """Replace the allocations of a consumer."""
        consumer = url.rpartition('/')[2]
        return self._send('put', lambda: self._write({consumer: json}))

    def _write(self, body: Any) -> _Answer:
        self.allocations |= {
            key: each['allocations'] for key, each in body.items()
        }
        return _answer(204)

    def delete(self, url: str, **arguments: Any) -> _Answer:
        """Delete the allocations of a consumer."""
        found = self.allocations.pop(url.rpartition('/')[2], None)
        return _answer(204 if found else 404)


class _Manager(unsupported.UnsupportedOperations, nova_manager.ComputeManager):
    """A manager without the other classes of this package."""

    def __init__(self, placement: _Placement) -> None:
        self.clock = ManualClock()
        self.reportclient = report.SchedulerReportClient(placement)


def _server(*, is_gone: bool = False) -> Any:
    def refresh() -> None:
        if is_gone:
            raise nova_exception.InstanceNotFound(instance_id='s1')

    return types.SimpleNamespace(
        uuid='s1', node='node-1', obj_get_changes=dict, refresh=refresh
    )


_CONTEXT = types.SimpleNamespace(global_id='req')


def _refuse_resize(placement: _Placement, server: Any) -> None:
    migration = types.SimpleNamespace(uuid='m1', source_node='node-1')
    _Manager(placement)._take_back_allocation(_CONTEXT, server, migration)


@pytest.mark.parametrize(
    'failures',
    [
        (),
        (_AWAY,),
        (None, _AWAY),
        (None, None, _AWAY),
        (None, *[_AWAY] * 3),
        (None, None, None, _answer(503, {'errors': [{'code': 'x'}]})),
        (None, None, None, _answer(503, {'error': 'no Keystone'})),
        (None, None, None, _Answer(status_code=503, text='<html>')),
    ],
)
def test_server_has_its_allocation_after_a_refused_resize(
    failures: tuple[_Failure, ...],
) -> None:
    """Otherwise its node would belong to the migration for ever."""
    placement = _Placement({'m1': _HERE, 's1': _THERE}, *failures)
    _refuse_resize(placement, _server())
    assert placement.allocations == {'m1': {}, 's1': _HERE}


def test_lost_answer_of_placement_changes_nothing() -> None:
    """The allocation was moved, and is found to be."""
    placement = _Placement(
        {'m1': _HERE, 's1': _THERE},
        *(None, None, None, _AWAY),
        carries_out=lambda method: method == 'post',
    )
    _refuse_resize(placement, _server())
    assert placement.allocations == {'m1': {}, 's1': _HERE}


def test_server_that_is_deleted_meanwhile_gets_no_allocation() -> None:
    """The message may come late, and nobody would free the node again."""
    placement = _Placement({'m1': _HERE})
    _refuse_resize(placement, _server(is_gone=True))
    assert placement.allocations == {}


@pytest.mark.parametrize('failure', [_AWAY, _answer(503)])
@pytest.mark.parametrize('at', range(4))
def test_refused_evacuation_frees_the_other_node(
    at: int, failure: _Failure
) -> None:
    """Placement does not answer to one of the requests."""
    placement = _Placement({'s1': {**_HERE, **_THERE}}, *[None] * at, failure)
    manager = _Manager(placement)
    refused_moves._free_other_nodes(manager, _CONTEXT, _server())
    assert placement.allocations == {'s1': _HERE}


def test_refused_evacuation_keeps_the_node_with_a_row_before_nova_18(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Placement has the uuid of the row, which is not the node's."""
    row = types.SimpleNamespace(uuid='row-uuid')
    monkeypatch.setattr(
        objects.ComputeNode, 'get_by_nodename', lambda context, node: row
    )
    here = {'row-uuid': _HERE['node-1']}
    placement = _Placement({'s1': {**here, **_THERE}})
    manager = _Manager(placement)
    refused_moves._free_other_nodes(manager, _CONTEXT, _server())
    assert placement.allocations == {'s1': here}


@pytest.mark.parametrize('name', ['prep_resize', 'refuse_evacuation'])
def test_refused_move_leaves_a_server_in_its_zone(name: str) -> None:
    """The message has the zone of the other node; ends of tasks save it."""
    both = {fake.NODE: _HERE['node-1'], **_THERE}
    placement = _Placement({'m1': _HERE, fake.SERVER: both})
    manager = _Manager(placement)
    server = fake.unsaved_server(availability_zone='zone-1')
    server.obj_reset_changes()
    server.availability_zone = 'zone-2'
    migration = types.SimpleNamespace(
        uuid='m1', obj_as_admin=contextlib.nullcontext, save=lambda: None
    )
    if name == 'prep_resize':
        refuse = safe_utils.get_wrapped_function(manager.prep_resize)
        rest = (None, None, None, None, None, migration, None)
        request: Any = (None, server, *rest)
    else:
        refuse = safe_utils.get_wrapped_function(
            refused_moves.refuse_evacuation
        )
        request = (server, {'migration': migration})
    with pytest.raises(nova_exception.NovaException, match='cannot be'):
        refuse(manager, _CONTEXT, *request)
    assert 'availability_zone' not in server.obj_get_changes()
