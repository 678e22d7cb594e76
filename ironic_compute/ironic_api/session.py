# SPDX-License-Identifier: Apache-2.0
"""Session with Ironic: its clients, API microversion, and error translation.

One client repeats a request that a busy Ironic refused, the other never does.
Both are created at the first request, so that an Ironic that is down does not
stop the worker's start. They are created again when Ironic no longer supports
their API version, because Ironic may have been upgraded or rolled back.
Exceptions of ironicclient and keystoneauth1 do not leave this module.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from ironicclient import client as ironicclient
from ironicclient import exc as ironic_exc
from ironicclient.common.apiclient import exceptions as api_exc
from keystoneauth1 import exceptions as ksa_exc
from keystoneauth1 import loading as ks_loading

from ironic_compute import errors
from resource_tracker.errors import MalformedNode

# Offered to Ironic, which takes the highest it knows. 1.46 has conductor
# groups, the least we can work with; 1.82 has shards.
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

# Those of them after which Ironic has certainly done nothing.
_NOTHING_DONE = (
    api_exc.ServiceUnavailable,
    api_exc.ConnectionRefused,
    api_exc.Unauthorized,
    api_exc.UnsupportedVersion,
    ksa_exc.ConnectFailure,
    ksa_exc.Unauthorized,
)

# What Ironic says with 409 of a node that somebody else works on.
_LOCKED = ('locked', 'state transition is in progress', 'while it is in state')


class IronicSession:
    """The client of one Ironic; any thread may ask.

    :param conf: has the group ``client`` as Nova registers it
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
    def request(self, action: str) -> Iterator[Any]:
        """Lend a client, and turn what goes wrong into our errors.

        :param action: what is asked of Ironic, as in 'to ...'
        :raises errors.IronicComputeError: see `errors`
        """
        with self.meter(action), self._translating_errors(action):
            yield self._cached_client()

    @contextlib.contextmanager
    def _translating_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except errors.IronicComputeError:
            raise
        except (api_exc.ClientException, ksa_exc.ClientException) as exc:
            if isinstance(exc, api_exc.UnsupportedVersion):
                self._drop_client()
            raise translate_error(action, exc) from exc
        except MalformedNode as exc:
            raise errors.IronicRefused(
                f'Ironic gave no proper answer when asked to {action}: {exc}'
            ) from exc

    def read_microversion(self) -> tuple[int, int]:
        """Return the API version that Ironic and we have in common."""
        with self.request('say its version') as client:
            major, minor = str(client.current_api_version).split('.')
        return int(major), int(minor)

    def _cached_client(self) -> Any:
        """Return a client; made outside the lock, which must stay short."""
        client = self._client
        if client is None:
            made = self._connect()
            with self._lock:
                client = self._client = self._client or made
        return client

    def _drop_client(self) -> None:
        with self._lock:
            self._client = None

    def _connect(self) -> Any:
        options = self._options
        arguments: dict[str, Any] = {}
        if options.endpoint_override:
            arguments['endpoint'] = options.endpoint_override
        client = ironicclient.get_client(
            '1',
            session=self._session,
            # A list is negotiated; its type is declared too narrowly.
            os_ironic_api_version=MICROVERSIONS,  # type: ignore[arg-type]
            valid_interfaces=options.valid_interfaces,
            service_type=options.service_type,
            region_name=options.region_name,
            # Whoever asks repeats, with the lease in view: `driver.watch`.
            max_retries=0,
            retry_interval=0,
            **arguments,
        )
        _negotiate(client)
        return client


def _session(conf: Any) -> Any:
    """Make the session; asks nothing of the network."""
    options = conf.ironic
    section = options.auth_section or 'ironic'
    if section != 'ironic':
        # Any section: not only one that Nova has options in.
        ks_loading.register_auth_conf_options(conf, section)
    if not conf[section].auth_type and not options.endpoint_override:
        raise errors.ConfigError(
            'nova.conf has no credentials for Ironic: set [ironic] auth_type, '
            'for example to password with auth_url, username, password and '
            'system_scope = all'
        )
    try:
        return ks_loading.load_session_from_conf_options(
            conf,
            'ironic',
            auth=ks_loading.load_auth_from_conf_options(conf, 'ironic'),
            timeout=options.timeout or _TIMEOUT_S,
        )
    except (ksa_exc.NoMatchingPlugin, ksa_exc.OptionError) as exc:
        raise errors.ConfigError(
            f'The credentials below [ironic] auth_type in nova.conf cannot '
            f'be used, correct them: {exc}'
        ) from exc


def _negotiate(client: Any) -> None:
    """Settle the API version now, so that later errors are not about it."""
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
    """Return our error for one of the libraries'.

    :param action: what was asked of Ironic, as in 'to ...'
    """
    match exc:
        case api_exc.NotFound() | ksa_exc.NotFound():
            return errors.NodeNotFound(f'Ironic could not {action}: {exc}')
        case api_exc.Conflict() | ksa_exc.Conflict():
            return _conflict(action, str(exc))
        case _ if isinstance(exc, _UNAVAILABLE):
            return _unavailable(action, exc)
        case _:
            return errors.IronicRefused(f'Ironic refused to {action}: {exc}')


def _unavailable(action: str, exc: Exception) -> errors.IronicUnavailable:
    kind = errors.IronicUnavailable
    if isinstance(exc, _NOTHING_DONE):
        kind = errors.IronicNotReached
    return kind(f'Ironic did not answer when asked to {action}: {exc}')


def _conflict(action: str, text: str) -> errors.IronicComputeError:
    """Tell the meanings of 409 apart; only the text does."""
    if any(word in text for word in _LOCKED):
        return errors.NodeLocked(f'Ironic could not {action} yet: {text}')
    if 'associated with' in text:
        return errors.NodeAssociated(f'Ironic refused to {action}: {text}')
    return errors.IronicRefused(f'Ironic refused to {action}: {text}')
