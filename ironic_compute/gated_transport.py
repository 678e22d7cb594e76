# SPDX-License-Identifier: Apache-2.0
"""Makes the writes of a keystoneauth1 session wait at the gate once more.

Before keystoneauth1 sends a request, it may have to get a token. If the
service refuses that token, it gets another one and sends the request again.
Keystone may take longer for this than the lease lasts. So a check of the gate
before the session is called is not enough: here each request is checked once
more, when it has its token.
"""

import functools
from typing import Any

from ironic_compute.gate import Gate

HTTP_READS = frozenset({'GET', 'HEAD', 'OPTIONS'})
"""The methods of HTTP that change nothing."""

_HEADER = 'X-Auth-Token'


def gate_transport(session: Any, gate: Gate) -> None:
    """Make each write of a session wait until the lease is in force.

    Requests without a token, such as those for a token, never wait. The
    session is changed in place.

    :param session: a session of keystoneauth1
    """
    transport = session.session
    send = transport.request

    @functools.wraps(send)
    def wait_and_send(method: str, url: str, **options: Any) -> Any:
        has_token = _HEADER in (options.get('headers') or {})
        if has_token and method.upper() not in HTTP_READS:
            gate.wait()
        return send(method, url, **options)

    transport.request = wait_and_send
