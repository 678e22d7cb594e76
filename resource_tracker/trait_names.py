# SPDX-License-Identifier: Apache-2.0
"""Which names of traits and resource classes Placement can be told.

A CUSTOM_ name must exist before its first use; it is made once a process,
and once more if somebody removed it since. A standard name exists or does
not, by the age of Placement's own library; what it does not know is left out,
and asked for again from time to time: Placement may have been upgraded.
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
    """What Placement was seen to know; any thread may call.

    Of several threads that meet a new name at once the first asks, and the
    others wait for its answer, good or bad.

    :param ask: sends (method, url) to Placement and returns the JSON answer
    """

    def __init__(self, request: Callable[[str, str], Any]) -> None:
        self._request = request
        self._created: set[tuple[Kind, str]] = set()
        self._standard: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._pending: dict[Hashable, futures.Future[None]] = {}

    def supported(self, traits: frozenset[str]) -> frozenset[str]:
        """Return the traits that can be written: one request at most."""
        standard = {t for t in traits if not _is_custom(t)}
        unseen = frozenset(standard - self._standard.keys())
        if unseen:
            self._request_once(
                unseen,
                lambda: unseen <= self._standard.keys(),
                lambda: self._read_standard(unseen),
            )
        return frozenset(t for t in traits if self._standard.get(t, True))

    def read_newly_supported(self) -> frozenset[str]:
        """Ask again for the standard traits that were unknown.

        :returns: those that are known by now; without a request if none
            was unknown
        """
        seen = self._standard.copy()  # Other threads add to it.
        unknown = frozenset(t for t, known in seen.items() if not known)
        learned = self._read_known(unknown) if unknown else frozenset()
        self._standard.update(dict.fromkeys(learned, True))
        if learned:
            LOG.info(
                'Placement knows these traits now, and nodes are reported '
                'with them: %(traits)s',
                {'traits': ', '.join(sorted(learned))},
            )
        return learned

    @contextlib.contextmanager
    def ensured(self, kind: Kind, names: Iterable[str]) -> Iterator[None]:
        """See that custom names exist while something is written with them.

        :raises errors.NameVanished: Placement refused the write, and a name
            that somebody removed may be why; the next try makes it anew
        """
        custom = {(kind, name) for name in names if _is_custom(name)}
        new = custom - self._created
        for key in sorted(new):
            self._create(key)
        try:
            yield
        except errors.PlacementRefused as exc:
            if new == custom:
                raise  # All were just made: it is something else.
            # Which name is missing is not said in a way to rely on.
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
        """Ask, unless it is known by now or somebody is asking."""
        with self._lock:
            if is_known():
                return
            answer = self._pending.get(key)
            asks = answer is None
            if answer is None:
                answer = self._pending[key] = futures.Future()
        if asks:
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
        asked = ','.join(sorted(traits))
        answer = self._request('GET', f'/traits?name=in:{asked}')
        return traits & frozenset(answer['traits'])


def _is_custom(name: str) -> bool:
    return bool(os_resource_classes.is_custom(name))
