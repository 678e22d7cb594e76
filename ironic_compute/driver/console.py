# SPDX-License-Identifier: Apache-2.0
"""Serial and VNC consoles of servers, which Ironic's console support opens.

A console that is enabled already stays as it is, because a user may be
connected to it.
"""

import contextlib
import math
import urllib.parse
from collections.abc import Mapping
from typing import Any

import nova.conf
from nova import exception as nova_exception
from nova.console import type as console_type
from oslo_log import log as logging

from ironic_compute import errors
from ironic_compute.driver.node_waiter import NodeWaiter
from resource_tracker.node import NodeId

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_POLL_S = 1.0
# How long a reset waits until a console is disabled. In all, nova-api waits a
# minute for the answer. While Ironic still disables it, the node is locked,
# and the request to enable it waits for that.
_DISABLE_S = 45.0

# How the names of Ironic's serial console interfaces end. "ilo" is one of
# older releases, which uses shellinabox.
_SERIAL = ('-socat', '-shellinabox', 'ilo')


class Console:
    """Enables consoles and returns their addresses; any thread may call."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter
        self._client = waiter.client

    def open_serial(self, instance: Any) -> Any:
        """Return the serial console as Nova's ``ConsoleSerial``.

        A console that the operator has disabled stays disabled. A console
        without a usable address is reset once.

        :raises ConsoleTypeUnavailable: the node has no such console
        """
        node = self._waiter.read_node_of(instance).uuid
        console = self._read_console(node, 'serial')
        if not console['console_enabled']:
            raise _unavailable('serial', node, 'it is disabled in Ironic')
        info = console.get('console_info') or {}
        if info.get('type') == 'socat' and _address(info) is None:
            info = self._reset_console(node)
        address = _address(info)
        if info.get('type') != 'socat' or address is None:
            raise _unavailable('serial', node, f'it is {info}')
        return console_type.ConsoleSerial(host=address[0], port=address[1])

    def open_vnc(self, instance: Any) -> Any:
        """Enable the VNC console; return Nova's ``ConsoleVNC``.

        The URL in ``console_info`` leads to Ironic's own proxy; the address
        behind that proxy is in ``driver_internal_info``.

        :raises ConsoleTypeUnavailable: the node has no such console
        """
        node = self._waiter.read_node_of(instance).uuid
        info = self._open_vnc_console(node)
        fields = self._waiter.retry(
            lambda: self._client.read_fields(
                node, ['uuid', 'driver_internal_info']
            )
        )
        internal = fields.get('driver_internal_info') or {}
        host, port = internal.get('vnc_host'), internal.get('vnc_port')
        if info.get('type') != 'vnc' or host is None or port is None:
            raise _unavailable('vnc', node, f'it is {info}')
        return console_type.ConsoleVNC(host=host, port=port)

    def _open_vnc_console(self, node: NodeId) -> Mapping[str, Any]:
        """Enable the VNC console if needed; return its ``console_info``."""
        console = self._read_console(node, 'vnc')
        if console['console_enabled']:
            info: Mapping[str, Any] = console.get('console_info') or {}
            return info
        self._check_is_graphical(node)
        return self._switch_console(
            node, 'vnc', True, CONF.ironic.vnc_console_state_timeout
        )

    def _check_is_graphical(self, node: NodeId) -> None:
        """Check that a node's console is no serial one.

        Horizon requests a VNC console first, whatever the node has. Without
        this check, its request would enable a serial console that the operator
        has disabled.

        :raises ConsoleTypeUnavailable: it is a serial one
        """
        fields = self._waiter.retry(
            lambda: self._client.read_fields(node, ['console_interface'])
        )
        interface = str(fields.get('console_interface'))
        if interface.endswith(_SERIAL):
            raise _unavailable('vnc', node, f'its console is {interface}')

    def _reset_console(self, node: NodeId) -> Mapping[str, Any]:
        """Disable and enable a serial console; return its new info.

        A console that Ironic disables late, or whose state is not known, is
        enabled, too: it would count as one that the operator has disabled.
        """
        timeout_s = CONF.ironic.serial_console_state_timeout
        off_s = timeout_s and max(timeout_s, _DISABLE_S)
        with contextlib.suppress(nova_exception.ConsoleTypeUnavailable):
            self._switch_console(node, 'serial', False, off_s)
        return self._switch_console(node, 'serial', True, timeout_s)

    def _switch_console(
        self, node: NodeId, kind: str, enabled: bool, timeout_s: float
    ) -> Mapping[str, Any]:
        """Enable or disable the console; return Ironic's ``console_info``.

        :param timeout_s: 0 waits without limit
        :raises ConsoleTypeUnavailable: the console did not change
        """
        try:
            self._waiter.retry(
                lambda: self._client.set_console_mode(node, enabled)
            )
        except errors.IronicComputeError as exc:
            raise _unavailable(kind, node, str(exc)) from exc
        deadline_s = self._waiter.clock.now_s() + (timeout_s or math.inf)
        console = self._read_console(node, kind)
        while console['console_enabled'] != enabled:
            if self._waiter.clock.now_s() > deadline_s:
                raise _unavailable(kind, node, 'it does not change its mode')
            self._waiter.clock.sleep(_POLL_S)
            console = self._read_console(node, kind)
        return console.get('console_info') or {}

    def _read_console(self, node: NodeId, kind: str) -> Mapping[str, Any]:
        """Read the console from Ironic.

        :raises ConsoleTypeUnavailable: Ironic refuses, or is unavailable
        """
        try:
            return self._waiter.retry(lambda: self._client.read_console(node))
        except errors.IronicComputeError as exc:
            raise _unavailable(kind, node, str(exc)) from exc


def _address(info: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return host and port of a serial console; None without a usable URL."""
    try:
        url = urllib.parse.urlparse(str(info.get('url')))
        if url.scheme == 'tcp' and url.hostname and url.port:
            return url.hostname, url.port
    except ValueError as exc:  # The port is no number, or the host is wrong.
        LOG.debug('%(error)s', {'error': exc})
    return None


def _unavailable(kind: str, node: NodeId, reason: str) -> Exception:
    LOG.warning(
        'No %(kind)s console of node %(node)s is available: %(reason)s',
        {'kind': kind, 'node': node, 'reason': reason},
    )
    unavailable: Exception = nova_exception.ConsoleTypeUnavailable(
        console_type=kind
    )
    return unavailable
