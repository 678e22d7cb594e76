# SPDX-License-Identifier: Apache-2.0
"""Names of traits and resource classes that Placement accepts.

A CUSTOM_ name must exist before its first use. It is created once in each
process, and again if another client has deleted it. A standard trait exists
only if Placement's os_traits library has it. A standard trait that does not
exist is left out of writes, and each audit reads whether it exists now,
because Placement may have been upgraded.
"""

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent import futures
from typing import Any, Literal

import os_resource_classes
from oslo_log import log as logging

from resource_tracker import errors

LOG = logging.getLogger(__name__)

Kind = Literal['traits', 'resource_classes']


class TraitNames:
    """The names that exist in Placement; any thread may call, and calls block.

    If several threads use a new name at the same time, the first one sends the
    request and the others wait for its result, which may be an error. Each
    method raises ``errors.PlacementError``.

    :param request: sends (method, url) to Placement and returns the JSON body
    """

    def __init__(self, request: Callable[[str, str], Any]) -> None:
        self._request = request
        self._created: set[tuple[Kind, str]] = set()
        self._standard: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._pending: dict[Hashable, futures.Future[None]] = {}

    def supported(self, traits: frozenset[str]) -> frozenset[str]:
        """Return those of the traits that exist in Placement.

        Sends at most one request.
        """
        standard = {t for t in traits if not _is_custom(t)}
        unread = frozenset(standard - self._standard.keys())
        if unread:
            self._request_once(
                unread,
                lambda: unread <= self._standard.keys(),
                lambda: self._read_standard(unread),
            )
        return frozenset(t for t in traits if self._standard.get(t, True))

    def read_newly_supported(self) -> frozenset[str]:
        """Return the standard traits that did not exist before and exist now.

        Sends no request if all traits existed before.
        """
        # A copy, because other threads add entries meanwhile.
        standard = self._standard.copy()
        unknown = frozenset(t for t, known in standard.items() if not known)
        found = self._read_known(unknown) if unknown else frozenset()
        self._standard.update(dict.fromkeys(found, True))
        if found:
            LOG.info(
                'Placement knows these traits now, and nodes are reported '
                'with them: %(traits)s',
                {'traits': ', '.join(sorted(found))},
            )
        return found

    @contextlib.contextmanager
    def ensured(self, kind: Kind, names: Iterable[str]) -> Iterator[None]:
        """Create custom names that do not exist, then run the ``with`` block.

        The block sends the write that uses the names.

        :raises errors.NameVanished: Placement refused the write, possibly
            because another client deleted a name; the next try creates it
            again
        """
        custom = {(kind, name) for name in names if _is_custom(name)}
        new = custom - self._created
        for key in sorted(new):
            self._create(key)
        try:
            yield
        except errors.PlacementRefused as exc:
            if new == custom:
                # All names were created just now, so a missing name is not
                # the cause.
                raise
            # The error of Placement does not reliably name the missing trait
            # or class, so all of them are created again.
            self._created -= custom
            raise errors.NameVanished(str(exc)) from exc

    def _create(self, key: tuple[Kind, str]) -> None:
        def create() -> None:
            self._request('PUT', f'/{key[0]}/{key[1]}')
            self._created.add(key)

        self._request_once(key, lambda: key in self._created, create)

    def _request_once(
        self,
        key: Hashable,
        is_known: Callable[[], bool],
        request: Callable[[], None],
    ) -> None:
        """Call ``request`` in one thread; the other callers wait for its end.

        :param key: identifies the call
        :param is_known: returns whether ``request`` has succeeded already; it
            is then not called
        """
        with self._lock:
            if is_known():
                return
            answer = self._pending.get(key)
            is_first = answer is None
            if answer is None:
                answer = self._pending[key] = futures.Future()
        if is_first:
            try:
                request()
                answer.set_result(None)
            except BaseException as exc:
                answer.set_exception(exc)
            finally:
                del self._pending[key]
        answer.result()

    def _read_standard(self, traits: frozenset[str]) -> None:
        known = self._read_known(traits)
        self._standard.update({trait: trait in known for trait in traits})
        unknown = ', '.join(sorted(traits - known))
        if unknown:
            LOG.info(
                'Placement does not know these traits, so no node is '
                'reported with them: %(traits)s',
                {'traits': unknown},
            )

    def _read_known(self, traits: frozenset[str]) -> frozenset[str]:
        query = ','.join(sorted(traits))
        answer = self._request('GET', f'/traits?name=in:{query}')
        return traits & frozenset(answer['traits'])


def _is_custom(name: str) -> bool:
    return bool(os_resource_classes.is_custom(name))
