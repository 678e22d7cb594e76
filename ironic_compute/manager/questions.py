# SPDX-License-Identifier: Apache-2.0
"""Questions about a host or a server: an error is an answer, and no fault.

nova-api waits for these messages and returns the error to its user. Nova's
manager also saves it as a fault of the server. Users see only the last fault
of a server in ERROR, so ``openstack console log show``, or a dashboard that
tries each type of console, would hide the reason of a failed rebuild.

Ironic has no answer to some of the questions. Since compute API 2.88
``openstack hypervisor list --long`` asks for the uptime of each node, and the
log would have an error with a traceback for each node.

Importing this module imports Nova's manager; see ``compute_manager``.
"""

from typing import Any, NoReturn

import oslo_messaging
from nova import exception as nova_exception
from nova import safe_utils
from nova.compute import manager as nova_manager

from ironic_compute.manager.refusals import Method


def _unanswered(name: str) -> Method:
    """Return a manager method for which nova-api answers "not supported"."""

    @oslo_messaging.expected_exceptions(  # type: ignore[untyped-decorator]
        NotImplementedError
    )
    def ask(self: Any, context: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(name)

    return ask


def _without_fault(name: str) -> Method:
    """Return a method of Nova's manager whose error leaves no fault."""
    answer = safe_utils.get_wrapped_function(
        getattr(nova_manager.ComputeManager, name)
    )

    @oslo_messaging.expected_exceptions(  # type: ignore[untyped-decorator]
        nova_exception.NovaException, NotImplementedError
    )
    def ask(self: Any, context: Any, *args: Any, **kwargs: Any) -> Any:
        return answer(self, context, *args, **kwargs)

    return ask


class AnswersQuestions:
    """Mixin for Nova's ``ComputeManager``; the signatures are Nova's."""

    get_host_uptime = _unanswered('get_host_uptime')
    get_console_output = _unanswered('get_console_output')
    get_diagnostics = _unanswered('get_diagnostics')
    get_instance_diagnostics = _unanswered('get_instance_diagnostics')

    get_vnc_console = _without_fault('get_vnc_console')
    get_serial_console = _without_fault('get_serial_console')
    get_spice_console = _without_fault('get_spice_console')
    get_mks_console = _without_fault('get_mks_console')
    validate_console_port = _without_fault('validate_console_port')
