# SPDX-License-Identifier: Apache-2.0
"""A real Ironic logs the id of the user's request for which it is asked."""

from concurrent import futures

from oslo_context import context as oslo_context

from hashring.clock import SystemClock

_PATIENCE_S = 60.0


def _switch_off(ironic, node):
    """Switch a node off on behalf of a request; return the request's id."""
    request = oslo_context.RequestContext()
    ironic.set_power_state(node, 'off')
    return request.request_id


def test_ironics_api_logs_the_request_id(server, real):
    """A conductor does so, too, until it has another request in its thread."""
    node = real.enroll()
    with futures.ThreadPoolExecutor(1) as threads:
        request_id = threads.submit(_switch_off, real.ironic, node).result()
    clock = SystemClock()
    ends_s = clock.now_s() + _PATIENCE_S
    request = f'PUT /v1/nodes/{node}/states/power'
    while not any(request in line for line in server.log_lines(request_id)):
        assert clock.now_s() < ends_s, server.log_lines(node)
        clock.sleep(0.05)
