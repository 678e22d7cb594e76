# SPDX-License-Identifier: Apache-2.0
"""A rescue ends well though Ironic does not answer for a while."""

import contextlib
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects, safe_utils
from nova import rpc as nova_rpc
from nova.compute import manager as nova_manager
from nova.compute import task_states, vm_states
from nova.compute import utils as compute_utils

from ironic_compute import errors
from ironic_compute.manager.deployed_servers import KeepsDeployedServers
from ironic_compute.manager.rescues import RepeatedRescues
from ironic_compute.manager.stale_messages import DropsStaleMessages
from ironic_compute.manager.unsupported import UnsupportedOperations
from ironic_compute.recovery.in_progress import InProgress
from tests.unit.ironic_compute.driver import fake, timed

_REQUESTS = (
    'read_node',
    'read_node_of_instance',
    'read_fields',
    'set_power_state',
    'set_provision_state',
)
# As many as a rescue sends; some of them while it waits for Ironic.
_REQUESTS_COUNT = 22


class _Quiet:
    """What Nova mentions on its way, and nobody needs here."""

    def is_enabled(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


class _Nova:
    """Nova's own handlers, called with the server of a message."""

    def rescue_instance(self, context: Any, instance: Any, *args: Any) -> None:
        _bare('rescue_instance')(self, context, instance, 'pw', None, True)

    def unrescue_instance(self, context: Any, instance: Any) -> None:
        _bare('unrescue_instance')(self, context, instance)


def _bare(name: str) -> Callable[..., None]:
    handler = getattr(nova_manager.ComputeManager, name)
    bare: Callable[..., None] = safe_utils.get_wrapped_function(handler)
    return bare


class _Manager(
    UnsupportedOperations, _Nova, RepeatedRescues, KeepsDeployedServers
):
    """Nova's manager with the real driver, and without other services."""

    def __init__(self, bench: timed.TimedBench) -> None:
        self.clock, self.driver, self.host = bench.clock, bench.driver, 'c1'
        self.network_api = self.image_api = self.notifier = _Quiet()
        self.share_manager = _Quiet()
        # Nova 33 reads the shares itself.
        self._get_share_info = lambda *_: objects.ShareMappingList(objects=[])

    def nothing(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    _notify_about_instance_usage = _get_instance_block_device_info = nothing
    _get_image_name = nothing


class _Outage:
    """An Ironic that does not answer from one of its requests on.

    :param is_done: Ironic carries out the first request that it does not
        answer
    """

    def __init__(
        self,
        bench: timed.TimedBench,
        number: int,
        seconds: float,
        is_done: bool,
    ) -> None:
        self._clock, self._seconds = bench.clock, seconds
        self._number, self._is_done = number, is_done
        self._ends_s: float | None = None
        self._ironic = bench.ironic
        for name in _REQUESTS:
            send = getattr(bench.ironic, name)
            setattr(bench.ironic, name, functools.partial(self._answer, send))

    def _answer(self, send: Any, *args: Any, **kwargs: Any) -> Any:
        self._number -= 1
        if self._number >= 0:
            return send(*args, **kwargs)
        if self._ends_s is None:
            self._ends_s = self._clock.now_s() + self._seconds
            if self._is_done:
                send(*args, **kwargs)
                raise errors.IronicUnavailable('no answer')
        if self._clock.now_s() < self._ends_s:
            raise errors.IronicNotReached('connection refused')
        return send(*args, **kwargs)


@pytest.fixture(autouse=True)
def _no_other_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for notifier in ('LEGACY_NOTIFIER', 'NOTIFIER'):
        monkeypatch.setattr(nova_rpc, notifier, _Quiet())
    monkeypatch.setattr(
        objects.BlockDeviceMappingList, 'get_by_instance_uuid', _Quiet()._none
    )
    for name in (
        'notify_usage_exists',
        'notify_about_instance_rescue_action',
        'notify_about_instance_action',
    ):
        monkeypatch.setattr(compute_utils, name, lambda *_, **__: None)


def _bench(state: str) -> timed.TimedBench:
    """Return a driver on a machine that needs a while to switch off."""
    bench = timed.bench(
        instance_uuid=fake.SERVER,
        provision_state=state,
        power_state='power on',
    )
    send = bench.ironic.set_power_state

    def switch_off(*args: Any, **kwargs: Any) -> None:
        send(*args, **kwargs)
        bench.ironic.change_after(
            20.0, power_state='power off', target_power_state=None
        )

    bench.ironic.set_power_state = switch_off  # type: ignore[method-assign]
    return bench


def _server(**fields: Any) -> Any:
    server = fake.unsaved_server(**fields)
    server.obj_reset_changes()
    return server


_RESCUE: Mapping[str, Any] = types.MappingProxyType(
    {
        'name': 'rescue_instance',
        'node': 'active',
        'task_state': task_states.RESCUING,
        'vm_state': vm_states.ACTIVE,
        'ends_as': (vm_states.RESCUED, 'rescue'),
    }
)
_UNRESCUE: Mapping[str, Any] = types.MappingProxyType(
    {
        'name': 'unrescue_instance',
        'node': 'rescue',
        'task_state': task_states.UNRESCUING,
        'vm_state': vm_states.RESCUED,
        'ends_as': (vm_states.ACTIVE, 'active'),
    }
)


@pytest.mark.parametrize(
    ('seconds', 'is_done'), [(10.0, True), (600.0, False)]
)
@pytest.mark.parametrize('number', range(_REQUESTS_COUNT))
@pytest.mark.parametrize('case', [_RESCUE, _UNRESCUE], ids=lambda c: c['name'])
def test_rescue_outlasts_an_outage_of_ironic(
    case: Mapping[str, Any], number: int, is_done: bool, seconds: float
) -> None:
    """Nova would put the server to ERROR, with its machine off."""
    bench = _bench(case['node'])
    server = _server(task_state=case['task_state'], vm_state=case['vm_state'])
    manager = _Manager(bench)
    _Outage(bench, number, seconds, is_done)
    context = nova_context.get_admin_context()
    getattr(manager, case['name'])(context, server)
    vm_state, provision_state = case['ends_as']
    assert (server.vm_state, server.task_state) == (vm_state, None)
    node = bench.ironic.nodes[fake.NODE]
    assert node.provision_state == provision_state
    assert len(bench.ironic.begun) == 1


def test_rescue_does_not_wait_if_the_server_has_another_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its operator has reset its state, for example, and wants to stop it."""
    bench = _bench('active')
    server = _server(task_state=task_states.RESCUING)
    _Outage(bench, 3, 600.0, is_done=False)

    def refresh(self: Any) -> None:
        self.task_state = task_states.POWERING_OFF

    monkeypatch.setattr(fake.UnsavedServer, 'refresh', refresh)
    with pytest.raises(nova_exception.InstanceNotRescuable):
        _Manager(bench).rescue_instance(
            nova_context.get_admin_context(), server
        )
    assert not bench.ironic.begun


class _Dropping(UnsupportedOperations, DropsStaleMessages):
    """A manager with the real handlers of a refusal and of a stale message."""

    def __init__(self, bench: timed.TimedBench) -> None:
        self.clock, self.driver, self.host = bench.clock, bench.driver, 'c1'
        self.in_progress = InProgress()


def test_task_of_a_server_outlasts_a_rescue_that_has_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message of a stop would be dropped if its task were cleared."""
    bench = _bench('active')
    server = _server(task_state=task_states.RESCUING)
    _Outage(bench, 0, 600.0, is_done=False)

    def refresh(self: Any) -> None:
        self.task_state = task_states.POWERING_OFF

    monkeypatch.setattr(fake.UnsavedServer, 'refresh', refresh)
    for reported in ('EventReporter', 'add_instance_fault_from_exc'):
        monkeypatch.setattr(
            compute_utils, reported, lambda *_, **__: contextlib.nullcontext()
        )
    _Dropping(bench).rescue_instance(nova_context.get_admin_context(), server)
    assert server.task_state == task_states.POWERING_OFF


def test_rescue_does_not_need_the_image_of_the_server() -> None:
    """The image may have been deleted since the server was built."""

    class Glance(_Quiet):
        def get(self, context: Any, image: str, **options: Any) -> Any:
            raise nova_exception.ImageNotFound(image_id=image)

    manager = _Manager(_bench('active'))
    manager.image_api = Glance()
    server = _server(task_state=task_states.RESCUING)
    manager.rescue_instance(nova_context.get_admin_context(), server)
    assert server.vm_state == vm_states.RESCUED
