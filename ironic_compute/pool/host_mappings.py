# SPDX-License-Identifier: Apache-2.0
"""Whether Nova's API knows the cell of a host.

Without that a server which is sent to the host dies in cell0. nova-conductor
knows, if it has the API database; otherwise nova-api does, if the user of
``[placement]`` may ask it. Where neither tells, an operator's word counts
(``ironic-computectl host mapped``), and none is no word about the host.
"""

import enum
from collections.abc import Callable
from typing import Any

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
# Of an error that the conductor meets; its class does not cross the wire.
_NO_API_DATABASE = 'CantStartEngineError'
_NO_WAY = (
    ks_exceptions.CatalogException,
    ks_exceptions.MissingAuthPlugin,
    ks_exceptions.Unauthorized,
    ks_exceptions.Forbidden,
)


class Mapped(enum.Enum):
    """What is known of one host."""

    YES = 'yes'
    NO = 'no'
    UNREADABLE = 'unreadable'
    NO_ANSWER = 'no answer'


def read_from_conductor(host: Host) -> Mapped:
    """Read the mapping through nova-conductor; one RPC."""
    context = nova_context.get_admin_context()
    return classify_conductor_read(
        lambda: objects.HostMapping.get_by_host(context, host)
    )


def classify_conductor_read(read: Callable[[], object]) -> Mapped:
    """Return what follows from an attempt to read a mapping."""
    try:
        read()
    except nova_exception.HostMappingNotFound:
        return Mapped.NO
    except oslo_messaging.RemoteError as exc:
        LOG.debug('Could not read a host mapping: %(exc)s', {'exc': exc})
        is_for_good = exc.exc_type == _NO_API_DATABASE
        return Mapped.UNREADABLE if is_for_good else Mapped.NO_ANSWER
    except Exception as exc:
        LOG.debug('Could not read a host mapping: %(exc)s', {'exc': exc})
        return Mapped.NO_ANSWER
    return Mapped.YES


def read_from_api(host: Host) -> Mapped:
    """Ask nova-api with the credentials of ``[placement]``; one request."""
    return classify_api_read(
        lambda: _nova_api().get(f'/os-hosts/{host}', timeout=_TIMEOUT_S)
    )


def classify_api_read(get: Callable[[], Any]) -> Mapped:
    """Return what follows from an attempt to get ``/os-hosts/<host>``.

    A host without nodes is not found either, but only after its mapping was.
    """
    try:
        answer = get()
    except _NO_WAY:
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


class HostMappings:
    """What was found out of each host; one thread uses it.

    Once mapped, always mapped, as long as the host exists: that half is
    asked at most once a host.

    :param is_confirmed: whether an operator has said that a host is mapped
    :param conductor: asks nova-conductor
    :param api: asks nova-api, where no conductor can tell
    """

    def __init__(
        self,
        is_confirmed: Callable[[Host], bool],
        conductor: Callable[[Host], Mapped] = read_from_conductor,
        api: Callable[[Host], Mapped] = read_from_api,
    ) -> None:
        self._is_confirmed = is_confirmed
        self._conductor = conductor
        self._api = api
        self._mapped: set[Host] = set()
        self._told: set[tuple[Host, Mapped]] = set()

    def is_mapped(self, host: Host) -> bool:
        """Say whether a host is in a cell; False while nobody says so."""
        if host in self._mapped:
            return True
        answer = self.read(host)
        if answer in (
            Mapped.UNREADABLE,
            Mapped.NO_ANSWER,
        ) and self._is_confirmed(host):
            if answer is Mapped.UNREADABLE:
                self._mapped.add(host)
            return True
        if answer is Mapped.YES:
            self._mapped.add(host)
        self._tell_once(host, answer)
        return answer is Mapped.YES

    def read(self, host: Host) -> Mapped:
        """Ask who can tell; any thread may call."""
        answer = self._conductor(host)
        return self._api(host) if answer is Mapped.UNREADABLE else answer

    def forget_host(self, host: Host) -> None:
        """A host does not exist any more, nor does its mapping."""
        self._mapped.discard(host)

    def _tell_once(self, host: Host, answer: Mapped) -> None:
        sentence = _SENTENCES.get(answer)
        if sentence is not None and (host, answer) not in self._told:
            self._told.add((host, answer))
            LOG.warning(sentence, {'host': host})


_SENTENCES = {
    Mapped.NO: (
        'Host %(host)s is not mapped to a cell and gets no nodes until it '
        'is; run: nova-manage cell_v2 discover_hosts --by-service'
    ),
    Mapped.UNREADABLE: (
        'Could not ask nova-conductor nor nova-api whether host %(host)s is '
        'mapped to a cell, so it gets no nodes until you say so: run '
        'nova-manage cell_v2 discover_hosts --by-service, then '
        'ironic-computectl host mapped %(host)s'
    ),
    Mapped.NO_ANSWER: (
        'Nova did not answer whether host %(host)s is mapped to a cell, '
        "so it gets no nodes by this worker's word; asking again"
    ),
}
