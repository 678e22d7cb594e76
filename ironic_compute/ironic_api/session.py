# SPDX-License-Identifier: Apache-2.0
"""Session with Ironic: its client, API microversion, and error translation.

The client is created at the first request, so that an Ironic that is down does
not stop the worker's start. It is created again when Ironic no longer supports
its API version, and for each list of all nodes, because Ironic may have been
upgraded or rolled back. It never repeats a request. Exceptions of ironicclient
and keystoneauth1 do not leave this module.

Each request has the request id of its thread's context in a header, so that
Ironic logs the id of the user's request that this process logs.
"""

import contextlib
import functools
import http
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from ironicclient import client as ironicclient
from ironicclient import exc as ironic_exc
from ironicclient.common.apiclient import exceptions as api_exc
from keystoneauth1 import exceptions as ksa_exc
from keystoneauth1 import loading as ks_loading
from oslo_context import context as oslo_context
from urllib3 import exceptions as urllib3_exc

from ironic_compute import access_errors, errors
from ironic_compute.ironic_api import rights
from resource_tracker.errors import MalformedNode

# The client uses the highest of these versions that Ironic supports. 1.46 is
# the lowest, because it introduced conductor groups; 1.82 introduced shards.
_MINORS = (46, 50, 52, 56, 61, 65, 72, 78, 82, 86, 90, 95)
MICROVERSIONS = [f'1.{minor}' for minor in _MINORS]

# Ironic waits up to a minute for its conductors before it answers.
_TIMEOUT_S = 90

_UNAVAILABLE = (
    ksa_exc.ClientException,
    api_exc.UnsupportedVersion,
    api_exc.ConnectionError,
    api_exc.EndpointException,
    api_exc.HttpServerError,
    api_exc.Unauthorized,
    api_exc.RequestTimeout,
    ironic_exc.AmbiguousAuthSystem,
)

# The errors among _UNAVAILABLE after which Ironic has certainly done nothing;
# see also ``_is_nothing_done``.
_NOTHING_DONE = (
    api_exc.ServiceUnavailable,
    api_exc.ConnectionRefused,
    api_exc.Unauthorized,
    api_exc.UnsupportedVersion,
    ksa_exc.Unauthorized,
    ksa_exc.NotFound,  # Of Keystone: there is no token to send.
)

# The answers of Keystone, or of Ironic to a token, that a wrong nova.conf may
# cause. Keystone answers 404 if an application credential was deleted.
_NO_TOKEN = (api_exc.Unauthorized, ksa_exc.Unauthorized, ksa_exc.NotFound)

# Texts in Ironic's answer 409 if another request or a state change holds the
# node's lock.
_LOCKED = ('locked', 'state transition is in progress', 'while it is in state')

# The text in Ironic's answer 403 for a node that an operator has protected. No
# right would help.
_PROTECTED = 'is protected'

# The text in Ironic's answer 404, or 400, if no conductor that is up has the
# driver and the conductor group of the node. Other conductors are up.
_NO_CONDUCTOR = 'No valid host was found'

# The text in Ironic's answer 503 if max_concurrent_deploy or
# max_concurrent_clean nodes are deployed or cleaned.
_AT_LIMIT = 'concurrent action limit'


class IronicSession:
    """Lends the ironicclient of one Ironic; any thread may call.

    :param conf: Nova's options, with the group ``ironic``
    :raises errors.ConfigError: the credentials are missing or incomplete
    """

    def __init__(self, conf: Any) -> None:
        self._options = conf.ironic
        self._session = _session(conf)
        self._lock = threading.Lock()
        self._client: Any = None
        self.meter: Callable[[str], AbstractContextManager[None]]
        self.meter = lambda action: contextlib.nullcontext()

    @contextlib.contextmanager
    def request(self, action: str, client: Any = None) -> Iterator[Any]:
        """Lend an ironicclient for one request, and translate its errors.

        The first request also negotiates the API version.

        :param action: completes "Ironic refused to …" in an error's text
        :param client: what :meth:`prepare` has returned; by default the
            newest client
        :raises errors.IronicComputeError: the class tells the cause, see
            :func:`translate_error`
        """
        with self.meter(action), self._translating_errors(action):
            yield client or self._cached_client()

    def prepare(self, action: str) -> Any:
        """Have a client and a token, so that a request is sent at once.

        Blocks until Keystone and Ironic have answered, if they must be asked.

        :param action: see :meth:`request`
        :returns: the client for that request, because another thread may have
            the next one negotiate the API version again
        :raises errors.IronicNotReached: Keystone or Ironic did not answer;
            the request that was to follow is not sent
        """
        try:
            return self._prepare(action)
        except errors.IronicUnavailable as exc:
            raise errors.IronicNotReached(str(exc), exc.http_status) from exc

    def _prepare(self, action: str) -> Any:
        client = self._client
        if client is None:
            with self.request('say its version') as client:
                pass
        if self._session.auth is not None:
            with self._translating_errors(action):
                self._session.get_token()
        return client

    @contextlib.contextmanager
    def _translating_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except errors.IronicComputeError:
            raise
        except (api_exc.ClientException, ksa_exc.ClientException) as exc:
            if isinstance(exc, api_exc.UnsupportedVersion):
                self.drop_client()
            raise translate_error(action, exc) from exc
        except MalformedNode as exc:
            raise errors.IronicRefused(
                f'Ironic gave no proper answer when asked to {action}: {exc}'
            ) from exc
        except Exception as exc:
            if type(exc) is not Exception:
                raise
            # keystoneauth1 raises a bare one for a password that is not set.
            raise _no_token(exc) from exc

    def read_microversion(self) -> tuple[int, int]:
        """Return the highest API version that Ironic and this client share."""
        with self.request('say its version') as client:
            major, minor = str(client.current_api_version).split('.')
        return int(major), int(minor)

    def _cached_client(self) -> Any:
        """Return the client; create it first if there is none.

        It is created outside the lock, because that takes requests. If two
        threads create one at the same time, the first is kept.
        """
        client = self._client
        if client is None:
            made = self._connect()
            with self._lock:
                client = self._client = self._client or made
        return client

    def drop_client(self) -> None:
        """Have the next request negotiate the API version again."""
        with self._lock:
            self._client = None

    def _connect(self) -> Any:
        options = self._options
        client = ironicclient.get_client(
            '1',
            session=self._session,
            # A list is accepted, although the annotation allows only a str.
            os_ironic_api_version=MICROVERSIONS,  # type: ignore[arg-type]
            valid_interfaces=options.valid_interfaces,
            service_type=options.service_type,
            region_name=options.region_name,
            # ``driver.node_waiter`` repeats requests, within the lease.
            max_retries=0,
            retry_interval=0,
            endpoint=options.endpoint_override or self._find_endpoint(),
        )
        _negotiate(client)
        return client

    def _find_endpoint(self) -> str:
        """Read Ironic's endpoint from Keystone's catalog.

        The client would read it too, and hide the error of keystoneauth1.

        :raises errors.IronicUnavailable: there is none
        """
        options = self._options
        try:
            endpoint: str | None = self._session.get_endpoint(
                service_type=options.service_type or 'baremetal',
                interface=options.valid_interfaces,
                region_name=options.region_name,
            )
        except ksa_exc.ClientException:
            raise
        except Exception as exc:  # Such as for a password that is not set.
            raise _no_token(exc) from exc
        if endpoint is None:
            raise errors.IronicUnavailable(
                'Keystone has no endpoint of Ironic for us; check [ironic] '
                'region_name, service_type and valid_interfaces in nova.conf'
            )
        return endpoint


def _no_token(exc: Exception) -> errors.IronicNotReached:
    return errors.IronicNotReached(
        f'No token for Ironic; check what is below [ironic] auth_type in '
        f'nova.conf: {exc}'
    )


def _session(conf: Any) -> Any:
    """Create the session of keystoneauth1 from nova.conf; sends nothing."""
    options = conf.ironic
    section = options.auth_section or 'ironic'
    if section != 'ironic':
        # auth_section may name any section, also one that Nova does not
        # define, and then its options must be registered first.
        ks_loading.register_auth_conf_options(conf, section)
    if not conf[section].auth_type and not options.endpoint_override:
        raise errors.ConfigError(
            'nova.conf has no credentials for Ironic: set [ironic] auth_type, '
            'for example to password with auth_url, username, password and '
            'system_scope = all'
        )
    with access_errors.translated_credentials('ironic'):
        session: Any = ks_loading.load_session_from_conf_options(
            conf,
            'ironic',
            auth=ks_loading.load_auth_from_conf_options(conf, 'ironic'),
            timeout=options.timeout or _TIMEOUT_S,
        )
    send = _without_retry_after(_with_one_token(session))
    session.request = _with_request_id(_of_ironic_only(send))
    return session


def _with_one_token(session: Any) -> Callable[..., Any]:
    """Wrap a session's ``request``: a change is sent with one token only.

    If Ironic refuses a token, keystoneauth1 sends the request again with a new
    one, for which it may wait for longer than a lease.
    """
    send = session.request

    @functools.wraps(send)
    def request(url: str, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == 'GET' or kwargs.get('authenticated') is False:
            return send(url, method, *args, **kwargs)
        response = send(url, method, *args, **kwargs, allow_reauth=False)
        is_refused = response.status_code == http.HTTPStatus.UNAUTHORIZED
        if is_refused and session.auth is not None:
            session.invalidate()
        return response

    return request


def _without_retry_after(send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a session's ``request``: remove ``Retry-After`` from the answer.

    ironicclient raises a TypeError for most errors that have this header.
    """

    @functools.wraps(send)
    def request(*args: Any, **kwargs: Any) -> Any:
        response = send(*args, **kwargs)
        response.headers.pop('Retry-After', None)
        return response

    return request


def _of_ironic_only(send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a session's ``request``: refuse a page that a proxy has answered.

    ironicclient takes any body for the success of a change, if the status is
    200: some proxies have this status while they show a page instead.
    """

    @functools.wraps(send)
    def request(*args: Any, **kwargs: Any) -> Any:
        response = send(*args, **kwargs)
        is_for_keystone = kwargs.get('authenticated') is False
        if not is_for_keystone and response.ok and _is_page(response.content):
            raise errors.IronicNotReached(
                f'Something else answers in place of Ironic: HTTP '
                f'{response.status_code} without JSON'
            )
        return response

    return request


def _is_page(body: bytes) -> bool:
    """Return whether a body is neither JSON nor empty.

    Only its begin is looked at, because lists are long.
    """
    return body.lstrip()[:1] == b'<'


def _with_request_id(send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a session's ``request``: pass the thread's request id on.

    The threads share one client, and its own ``global_request_id`` holds for
    all requests.
    """

    @functools.wraps(send)
    def request(*args: Any, **kwargs: Any) -> Any:
        context = oslo_context.get_current()
        if context is not None:
            kwargs.setdefault('global_request_id', context.global_id)
        return send(*args, **kwargs)

    return request


def _negotiate(client: Any) -> None:
    """Negotiate the API version now, so that no later request fails by it."""
    try:
        client.negotiate_api_version()
    except api_exc.UnsupportedVersion as exc:
        raise errors.ConfigError(
            f'This Ironic speaks no API version from {MICROVERSIONS[0]} to '
            f'{MICROVERSIONS[-1]}: upgrade it, or correct [ironic] '
            f'endpoint_override if it is not the one that was meant'
        ) from exc
    except RuntimeError as exc:
        raise errors.IronicUnavailable(
            f'What answers instead of Ironic does not say its API version; '
            f'check [ironic] endpoint_override if this stays so: {exc}'
        ) from exc


def translate_error(action: str, exc: Exception) -> errors.IronicComputeError:
    """Return an error of ``errors`` for one of ironicclient or keystoneauth1.

    :param action: completes "Ironic refused to …" in the error's text
    """
    match exc:
        case api_exc.HttpError() if _NO_CONDUCTOR in str(exc):
            return errors.NoConductor(
                f'Ironic could not {action} yet: {exc}', exc.http_status
            )
        case api_exc.HttpError() if _AT_LIMIT in str(exc):
            return errors.AtLimit(
                f'Ironic could not {action} yet: {exc}', exc.http_status
            )
        case api_exc.NotFound() if not _is_of_proxy(exc):
            return errors.NodeNotFound(
                f'Ironic could not {action}: {exc}; if it exists, the user '
                f'below [ironic] in nova.conf lacks {rights.READ_NODE.rule}'
            )
        case api_exc.Conflict() | ksa_exc.Conflict():
            return _conflict(action, str(exc))
        case _ if isinstance(exc, _UNAVAILABLE) or _is_unreached(exc):
            return _unavailable(action, exc)
        case api_exc.Forbidden() if _PROTECTED not in str(exc):
            return errors.IronicForbidden(
                f'Ironic refused to {action}: {exc}; the user below [ironic] '
                f'in nova.conf lacks this right{rights.CURE}'
            )
        case _:
            return errors.IronicRefused(f'Ironic refused to {action}: {exc}')


def _unavailable(action: str, exc: Exception) -> errors.IronicUnavailable:
    kind = errors.IronicUnavailable
    if _is_nothing_done(exc):
        kind = errors.IronicNotReached
    text = f'Ironic did not answer when asked to {action}: {exc}'
    if isinstance(exc, _NO_TOKEN):
        text += '; check what is below [ironic] auth_type in nova.conf'
    elif 'CERTIFICATE_VERIFY_FAILED' in text:
        text += (
            '; renew the certificate of this service, or correct [ironic] '
            'cafile in nova.conf'
        )
    return kind(text, _status_of_ironic(exc))


def _status_of_ironic(exc: Exception) -> int | None:
    """Return the status of Ironic's answer; None if it is not Ironic's.

    Errors of keystoneauth1 are about the connection, or Keystone's answer. A
    404 of Ironic is no ``IronicUnavailable``, so it is one of a proxy here.
    """
    if not isinstance(exc, api_exc.HttpError):
        return None
    is_of_proxy = exc.http_status == http.HTTPStatus.NOT_FOUND
    return None if is_of_proxy else exc.http_status


def _is_unreached(exc: Exception) -> bool:
    """Return whether a proxy has answered that has not asked Ironic.

    It gets too many requests, or does not know where Ironic is.
    """
    status = exc.http_status if isinstance(exc, api_exc.HttpError) else None
    return status == http.HTTPStatus.TOO_MANY_REQUESTS or (
        status == http.HTTPStatus.NOT_FOUND and _is_of_proxy(exc)
    )


def _is_of_proxy(exc: Any) -> bool:
    """Return whether an answer has another body than each error of Ironic.

    The header does not tell: some web servers leave it out. Some have an empty
    body, or JSON of their own. ironicclient raises some errors itself, which
    have no answer.
    """
    if exc.response is None:
        return False
    try:
        body = json.loads(exc.response.content)
    except ValueError:
        return True
    return not isinstance(body, dict) or 'error_message' not in body


def _is_nothing_done(exc: Exception) -> bool:
    """Return whether Ironic has certainly done nothing for a request.

    keystoneauth1 raises one error for a connection that was refused and for
    one that was reset after the request had been sent. Only what it caught
    tells them apart.
    """
    if not isinstance(exc, ksa_exc.ConnectFailure):
        return isinstance(exc, _NOTHING_DONE) or _is_unreached(exc)
    caught = exc.__context__
    cause = caught.args[0] if caught is not None and caught.args else None
    reason = getattr(cause, 'reason', None)
    return isinstance(reason, urllib3_exc.NewConnectionError)


def _conflict(action: str, text: str) -> errors.IronicComputeError:
    """Return the error for an answer 409, by its text.

    Ironic answers 409 for a locked node, a node with another instance and
    other refusals, and only the text differs.
    """
    if any(word in text for word in _LOCKED):
        return errors.NodeLocked(f'Ironic could not {action} yet: {text}')
    if 'associated with' in text:
        return errors.NodeAssociated(f'Ironic refused to {action}: {text}')
    return errors.IronicRefused(f'Ironic refused to {action}: {text}')
