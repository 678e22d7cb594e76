# SPDX-License-Identifier: Apache-2.0
"""Host mappings: whether Nova has mapped a host to a cell.

A server that is scheduled to an unmapped host goes to ERROR in cell0.
nova-conductor can read the mapping if it has the API database; otherwise
nova-api can, if the user of ``[placement]`` may list hosts. If neither can, a
host counts as mapped once an operator has confirmed it
(``ironic-computectl host mapped``), and as unmapped until then.
"""

import enum
from collections.abc import Callable
from typing import Any

import attrs
import oslo_messaging
from keystoneauth1 import adapter
from keystoneauth1 import exceptions as ks_exceptions
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova import utils as nova_utils
from oslo_log import log as logging

from hashring.ring import Host

LOG = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
# The name of the conductor's error if it has no API database. An error loses
# its class on the message bus.
_NO_API_DATABASE = 'CantStartEngineError'
_NO_ACCESS = (
    ks_exceptions.CatalogException,
    ks_exceptions.MissingAuthPlugin,
    ks_exceptions.Unauthorized,
    ks_exceptions.Forbidden,
)


class Mapped(enum.Enum):
    """The result of reading one host mapping.

    ``UNREADABLE`` is permanent, because no service lets us read the mapping;
    ``NO_ANSWER`` may be over soon.
    """

    YES = 'yes'
    NO = 'no'
    UNREADABLE = 'unreadable'
    NO_ANSWER = 'no answer'


def read_from_conductor(host: Host) -> Mapped:
    """Read a host mapping through nova-conductor; one RPC, blocks."""
    context = nova_context.get_admin_context()
    return classify_conductor_read(
        lambda: objects.HostMapping.get_by_host(context, host)
    )


def classify_conductor_read(read: Callable[[], object]) -> Mapped:
    """Call ``read`` and return what its result or error means.

    :param read: reads a host mapping through nova-conductor
    """
    try:
        read()
    except nova_exception.HostMappingNotFound:
        return Mapped.NO
    except oslo_messaging.RemoteError as exc:
        LOG.debug('Could not read a host mapping: %(exc)s', {'exc': exc})
        is_permanent = exc.exc_type == _NO_API_DATABASE
        return Mapped.UNREADABLE if is_permanent else Mapped.NO_ANSWER
    except Exception as exc:
        LOG.debug('Could not read a host mapping: %(exc)s', {'exc': exc})
        return Mapped.NO_ANSWER
    return Mapped.YES


def read_from_api(host: Host) -> Mapped:
    """Read a host from nova-api with the credentials of ``[placement]``.

    One request, which blocks for 10 s at most.
    """
    return classify_api_read(
        lambda: _nova_api().get(f'/os-hosts/{host}', timeout=_TIMEOUT_S)
    )


def classify_api_read(get: Callable[[], Any]) -> Mapped:
    """Call ``get`` and return what its response or error means.

    nova-api also answers 404 for a mapped host that has no nodes, but with
    another message than for an unmapped host.

    :param get: gets ``/os-hosts/<host>``
    """
    try:
        answer = get()
    except _NO_ACCESS:
        return Mapped.UNREADABLE
    except ks_exceptions.ClientException as exc:
        LOG.debug('Could not ask nova-api of a host: %(exc)s', {'exc': exc})
        return Mapped.NO_ANSWER
    match answer.status_code:
        case 200:
            return Mapped.YES
        case 401 | 403:
            return Mapped.UNREADABLE
        case 404 if 'not mapped to any cell' in answer.text:
            return Mapped.NO
        case 404 if 'Compute host' in answer.text:
            return Mapped.YES
    return Mapped.NO_ANSWER


def _nova_api() -> Any:
    placement = nova_utils.get_ksa_adapter('placement')
    return adapter.Adapter(
        placement.session,
        auth=placement.auth,
        service_type='compute',
        interface=placement.interface,
        region_name=placement.region_name,
        raise_exc=False,
    )


@attrs.define(eq=False, repr=False, slots=False)
class HostMappings:
    """The mappings of the pool's hosts; any thread may call ``read``.

    Only one thread may call the other methods.

    A mapped host stays mapped as long as it exists and is enabled, so that its
    mapping is not read again.

    :param is_confirmed: returns whether an operator has confirmed a mapping
    :param conductor: reads a mapping through nova-conductor
    :param api: reads a host from nova-api, if the conductor has no access
    """

    _is_confirmed: Callable[[Host], bool]
    _conductor: Callable[[Host], Mapped] = read_from_conductor
    _api: Callable[[Host], Mapped] = read_from_api

    def __attrs_post_init__(self) -> None:
        self._mapped: set[Host] = set()
        self._logged: set[tuple[Host, Mapped]] = set()

    def is_mapped(self, host: Host) -> bool:
        """Return whether a host is mapped; False as long as unknown.

        Blocks for one or two requests if the host was not mapped before.
        """
        if host in self._mapped:
            return True
        answer = self.read(host)
        is_unknown = answer in (Mapped.UNREADABLE, Mapped.NO_ANSWER)
        if is_unknown and self._is_confirmed(host):
            if answer is Mapped.UNREADABLE:
                self._mapped.add(host)
            return True
        if answer is Mapped.YES:
            self._mapped.add(host)
        self._log_once(host, answer)
        return answer is Mapped.YES

    def read(self, host: Host) -> Mapped:
        """Read a mapping from the conductor or the API; any thread; blocks."""
        answer = self._conductor(host)
        return self._api(host) if answer is Mapped.UNREADABLE else answer

    def forget_host(self, host: Host) -> None:
        """Read the mapping of a host again, because it may be deleted."""
        self._mapped.discard(host)

    def _log_once(self, host: Host, answer: Mapped) -> None:
        message = _WARNINGS.get(answer)
        if message is not None and (host, answer) not in self._logged:
            self._logged.add((host, answer))
            LOG.warning(message, {'host': host})


_WARNINGS = {
    Mapped.NO: (
        'Host %(host)s is not mapped to a cell and gets no nodes until it '
        'is; run: nova-manage cell_v2 discover_hosts --by-service'
    ),
    Mapped.UNREADABLE: (
        'Neither nova-conductor nor nova-api can tell whether host %(host)s '
        'is mapped to a cell, so it gets no nodes: run nova-manage cell_v2 '
        'discover_hosts --by-service, then ironic-computectl host mapped '
        '%(host)s'
    ),
    Mapped.NO_ANSWER: (
        'Nova did not answer whether host %(host)s is mapped to a cell, so '
        'this worker gives it no nodes; asking again'
    ),
}
