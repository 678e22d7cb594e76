# SPDX-License-Identifier: Apache-2.0
"""The end of a deploy that recovery has waited for is reported."""

import types
from typing import Any

import pytest
from nova import context as nova_context
from nova import objects, rpc
from nova.compute import utils, vm_states

from ironic_compute.recovery import deploy_ends

objects.register_all()

_VERSIONED = ('create', 'rebuild', 'action')


class _Nova:
    """Records the calls of Nova's functions, which then send nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Any] = []
        self.is_broken = False
        monkeypatch.setattr(
            rpc, 'get_notifier', lambda service, host: (service, host)
        )
        monkeypatch.setattr(utils, 'notify_about_instance_usage', self._usage)
        for name in _VERSIONED:
            monkeypatch.setattr(
                utils, f'notify_about_instance_{name}', self._versioned(name)
            )
        monkeypatch.setattr(
            objects.InstanceActionEvent, 'event_finish', self._finish
        )

    def _note(self, *values: Any) -> None:
        self.sent.append(values)
        if self.is_broken:
            raise ValueError('no answer')

    def _usage(
        self, notifier: Any, context: Any, instance: Any, suffix: str, **_: Any
    ) -> None:
        self._note(*notifier, suffix)

    def _versioned(self, name: str) -> Any:
        def send(
            context: Any, instance: Any, host: str, phase: str, **others: Any
        ) -> None:
            self._note(host, others.get('action', name), phase)

        return send

    def _finish(
        self, context: Any, server: str, name: str, *, want_result: bool
    ) -> None:
        self._note(context.request_id, server, name)


@pytest.fixture
def nova(monkeypatch: pytest.MonkeyPatch) -> _Nova:
    return _Nova(monkeypatch)


def _report(former: str) -> None:
    server = types.SimpleNamespace(uuid='s1', host='c1', get_network_info=list)
    context = nova_context.get_admin_context()
    context.request_id = 'req-1'
    deploy_ends.report_end(context, server, former)


@pytest.mark.parametrize(
    ('former', 'name', 'event'),
    [
        (vm_states.BUILDING, 'create', 'compute__do_build_and_run_instance'),
        (vm_states.ACTIVE, 'rebuild', 'compute_rebuild_instance'),
        (vm_states.STOPPED, 'rebuild', 'compute_rebuild_instance'),
        (
            vm_states.SHELVED_OFFLOADED,
            'unshelve',
            'compute_unshelve_instance',
        ),
    ],
)
def test_the_end_of_a_deploy_is_reported(
    nova: _Nova, former: str, name: str, event: str
) -> None:
    """Designate made no records for a server, and its event had no end."""
    _report(former)
    assert nova.sent == [
        ('compute', 'c1', f'{name}.end'),
        ('c1', name, 'end'),
        ('req-1', 's1', event),
    ]


def test_no_error_reaches_recovery(nova: _Nova) -> None:
    """The server is saved, so no later round would report the end again."""
    nova.is_broken = True
    _report(vm_states.BUILDING)
    assert len(nova.sent) == 3
