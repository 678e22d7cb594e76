# SPDX-License-Identifier: Apache-2.0
"""Serial and VNC consoles of servers, which Ironic's console support opens.

A console that is enabled already stays as it is, because a user may be
connected to it.
"""

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


class Console:
    """Enables consoles and returns their addresses; any thread may call."""

    def __init__(self, waiter: NodeWaiter) -> None:
        self._waiter = waiter
        self._client = waiter.client

    def open_serial(self, instance: Any) -> Any:
        """Enable the serial console; return Nova's ``ConsoleSerial``.

        :raises ConsoleTypeUnavailable: the node has no such console
        """
        node = self._waiter.read_node_of(instance).uuid
        info = self._open_console(
            node, 'serial', CONF.ironic.serial_console_state_timeout
        )
        url = urllib.parse.urlparse(str(info.get('url')))
        is_usable = info.get('type') == 'socat' and url.scheme == 'tcp'
        if not is_usable or not url.hostname or not url.port:
            raise _unavailable('serial', node, f'it is {info}')
        return console_type.ConsoleSerial(host=url.hostname, port=url.port)

    def open_vnc(self, instance: Any) -> Any:
        """Enable the VNC console; return Nova's ``ConsoleVNC``.

        The URL in ``console_info`` leads to Ironic's own proxy; the address
        behind that proxy is in ``driver_internal_info``.

        :raises ConsoleTypeUnavailable: the node has no such console
        """
        node = self._waiter.read_node_of(instance).uuid
        info = self._open_console(
            node, 'vnc', CONF.ironic.vnc_console_state_timeout
        )
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

    def _open_console(
        self, node: NodeId, kind: str, timeout_s: float
    ) -> Mapping[str, Any]:
        """Enable the console if needed; return Ironic's ``console_info``.

        :param timeout_s: 0 waits without limit
        :raises ConsoleTypeUnavailable: the console did not open
        """
        try:
            console = self._waiter.retry(
                lambda: self._client.read_console(node)
            )
            if not console['console_enabled']:
                self._waiter.retry(
                    lambda: self._client.set_console_mode(node, True)
                )
            deadline_s = self._waiter.clock.now_s() + (timeout_s or math.inf)
            while not console['console_enabled']:
                if self._waiter.clock.now_s() > deadline_s:
                    raise _unavailable(kind, node, 'it does not open')
                self._waiter.clock.sleep(_POLL_S)
                console = self._waiter.retry(
                    lambda: self._client.read_console(node)
                )
        except errors.IronicComputeError as exc:
            raise _unavailable(kind, node, str(exc)) from exc
        info: Mapping[str, Any] = console.get('console_info') or {}
        return info


def _unavailable(kind: str, node: NodeId, reason: str) -> Exception:
    LOG.warning(
        'No %(kind)s console of node %(node)s is available: %(reason)s',
        {'kind': kind, 'node': node, 'reason': reason},
    )
    unavailable: Exception = nova_exception.ConsoleTypeUnavailable(
        console_type=kind
    )
    return unavailable
