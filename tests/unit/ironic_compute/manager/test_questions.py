# SPDX-License-Identifier: Apache-2.0
"""A question that Nova cannot answer leaves neither traceback nor fault."""

import types
from typing import Any

import oslo_messaging
import pytest
from nova import exception as nova_exception
from nova import exception_wrapper
from nova.compute import utils as compute_utils

from ironic_compute.driver.driver import IronicComputeDriver
from ironic_compute.manager.compute_manager import IronicComputeManager


class _Context:
    """The context of a user, who is no administrator."""

    def elevated(self) -> '_Context':
        """Return the context of an administrator."""
        return self


class _Driver(IronicComputeDriver):
    """The driver, with a node that is on and has no console."""

    def __init__(self) -> None:
        """Leave out what the driver would be given."""

    def get_info(self, instance: Any, use_cache: bool = True) -> Any:
        """Return that the machine is on."""
        return types.SimpleNamespace(state=1)

    def get_vnc_console(self, context: Any, instance: Any) -> Any:
        """Refuse a console, like a node without a console interface."""
        raise nova_exception.ConsoleTypeUnavailable(console_type='vnc')


@pytest.mark.parametrize(
    ('name', 'args', 'error'),
    [
        ('get_host_uptime', (), NotImplementedError),
        ('get_diagnostics', (1,), NotImplementedError),
        ('get_instance_diagnostics', (1,), NotImplementedError),
        ('get_console_output', (1, None), NotImplementedError),
        (
            'get_vnc_console',
            ('novnc', 1),
            nova_exception.ConsoleTypeUnavailable,
        ),
        (
            'get_spice_console',
            ('spice-html5', 1),
            nova_exception.ConsoleTypeUnavailable,
        ),
        (
            'get_serial_console',
            ('serial', 1),
            nova_exception.ConsoleTypeUnavailable,
        ),
    ],
)
def test_question_without_an_answer_is_no_fault(
    name: str,
    args: tuple[Any, ...],
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller gets the error; the server keeps the fault that it has.

    oslo.messaging logs an error with a traceback unless it is expected.
    """
    faults: list[Any] = []
    for kind in ('legacy', 'versioned'):
        monkeypatch.setattr(
            exception_wrapper,
            f'_emit_{kind}_exception_notification',
            lambda *args, **kwargs: None,
        )
    monkeypatch.setattr(
        compute_utils,
        'add_instance_fault_from_exc',
        lambda *args, **kwargs: faults.append(args),
    )
    manager: Any = object.__new__(IronicComputeManager)
    manager.driver = _Driver()
    manager.host = 'c1'
    server = types.SimpleNamespace(uuid='s1', vm_state='error')
    given = [server if arg == 1 else arg for arg in args]
    with pytest.raises(oslo_messaging.ExpectedException) as found:
        getattr(manager, name)(_Context(), *given)
    assert isinstance(found.value.exc_info[1], error)
    assert not faults
