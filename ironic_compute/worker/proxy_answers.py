# SPDX-License-Identifier: Apache-2.0
"""Answers of a proxy to Nova's own code count as a service that is away.

A web server without Neutron, Cinder or Keystone behind it answers 404 to each
request. Nova takes any 404 for the service's answer that a port or an
attachment is gone: a server would be deleted, and its port or attachment would
stay for ever. So such an answer gets the status 503, which is repeated, and so
does a page of HTML that a proxy shows with the status 200: it would count as
the success of a delete.
"""

import functools
import http
from collections.abc import Callable
from typing import Any

from keystoneauth1 import exceptions as ksa_exceptions


def as_unavailable(send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the ``request`` of a session with Neutron or Cinder.

    Both answer 404 with a JSON object, as their clients ask for. Keystone
    answers 404 to a request for a token if an application credential was
    deleted, which says as little of a port. A request for its versions may
    have a 404.
    """

    @functools.wraps(send)
    def request(url: str, method: str, *args: Any, **kwargs: Any) -> Any:
        is_for_keystone = kwargs.get('authenticated') is False
        try:
            response = send(url, method, *args, **kwargs)
        except ksa_exceptions.NotFound as exc:
            if is_for_keystone and method.upper() == 'POST':
                raise ksa_exceptions.ServiceUnavailable(str(exc)) from exc
            raise
        if not is_for_keystone and _is_of_proxy(response):
            response.status_code = http.HTTPStatus.SERVICE_UNAVAILABLE
            response.reason = 'A proxy has answered'
        return response

    return request


def _is_of_proxy(response: Any) -> bool:
    if response.ok:
        return bool(response.content.lstrip()[:1] == b'<')
    if response.status_code != http.HTTPStatus.NOT_FOUND:
        return False
    try:
        return not isinstance(response.json(), dict)
    except ValueError:
        return True
