# SPDX-License-Identifier: Apache-2.0
"""Logs what Neutron, Cinder and Glance refuse to Nova's own code.

Nova swallows some of these refusals, such as that to release a port, and shows
the others without the user who lacks the right. So each answer 403 becomes one
sentence with the service's reason, which names the policy rules, and with the
user. The request goes on as Nova has it.
"""

import functools
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from keystoneauth1.identity import base as identity
from nova import service_auth
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# The section of nova.conf -> the name of its service.
_SERVICES: Mapping[str, str] = {
    'neutron': 'Neutron',
    'cinder': 'Cinder',
    'glance': 'Glance',
}
_FORBIDDEN = 403
# An answer without JSON may be a page of HTML.
_REASON_LENGTH_MAX = 500


def log_refusals() -> None:
    """Log the refusals of all requests of Nova's sessions from now on.

    Nova keeps one session for each service, which all its clients use. Call it
    once, after nova.conf was read.
    """
    for section in _SERVICES:
        session = service_auth.get_service_auth_session(section)
        session.request = logged(section, session.request)


def logged(section: str, send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the ``request`` of a session, which returns each refusal.

    :param section: the section of nova.conf, such as ``neutron``
    """

    @functools.wraps(send)
    def send_and_log(url: str, method: str, *args: Any, **kwargs: Any) -> Any:
        response = send(url, method, *args, **kwargs)
        # The session's own requests to Keystone have no user yet.
        auth = kwargs.get('auth')
        if auth is not None and response.status_code == _FORBIDDEN:
            user = _user_of(auth, section)
            _log(_SERVICES[section], user, method, url, response)
        return response

    return send_and_log


def _log(
    service: str, user: str, method: str, url: str, response: Any
) -> None:
    LOG.error(
        '%(service)s refused %(method)s %(path)s: %(reason)s (HTTP 403); '
        '%(user)s lacks a right: give that user the role of the manual, or '
        "allow the rules in %(service)s's policy file",
        {
            'service': service,
            'method': method,
            'path': urllib.parse.urlsplit(url).path,
            'reason': _reason_of(response),
            'user': user,
        },
    )


def _user_of(auth: Any, section: str) -> str:
    """Return whose rights count: a service token beside gives none."""
    own = getattr(auth, 'user_auth', auth)
    if isinstance(own, identity.BaseIdentityPlugin):
        return f'the user below [{section}] in nova.conf'
    return 'the user who asked for it'


def _reason_of(response: Any) -> str:
    """Return the message of an answer; its text if it has none."""
    try:
        (error,) = response.json().values()
        return str(error['message'])
    except (ValueError, TypeError, KeyError, AttributeError):
        return ' '.join(response.text.split())[:_REASON_LENGTH_MAX]
