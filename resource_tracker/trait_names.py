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

    def __init__(self, ask: Callable[[str, str], Any]) -> None:
        self._ask = ask
        self._made: set[tuple[Kind, str]] = set()
        self._standard: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._asking: dict[Hashable, futures.Future[None]] = {}

    def usable(self, traits: frozenset[str]) -> frozenset[str]:
        """Return the traits that can be written: one request at most."""
        standard = {t for t in traits if not _is_custom(t)}
        unseen = frozenset(standard - self._standard.keys())
        if unseen:
            self._once(
                unseen,
                lambda: unseen <= self._standard.keys(),
                lambda: self._look_up(unseen),
            )
        return frozenset(t for t in traits if self._standard.get(t, True))

    def learn(self) -> frozenset[str]:
        """Ask again for the standard traits that were unknown.

        :returns: those that are known by now; without a request if none
            was unknown
        """
        seen = self._standard.copy()  # Other threads add to it.
        unknown = frozenset(t for t, known in seen.items() if not known)
        learned = self._known(unknown) if unknown else frozenset()
        self._standard.update(dict.fromkeys(learned, True))
        if learned:
            LOG.info(
                'Placement knows %(traits)s by now; set on all nodes that '
                'want it',
                {'traits': ', '.join(sorted(learned))},
            )
        return learned

    @contextlib.contextmanager
    def made(self, kind: Kind, names: Iterable[str]) -> Iterator[None]:
        """See that custom names exist while something is written with them.

        :raises errors.NameVanished: Placement refused the write, and a name
            that somebody removed may be why; the next try makes it anew
        """
        custom = {(kind, name) for name in names if _is_custom(name)}
        new = custom - self._made
        for key in sorted(new):
            self._make(key)
        try:
            yield
        except errors.PlacementRefused as exc:
            if new == custom:
                raise  # All were just made: it is something else.
            # Which name is missing is not said in a way to rely on.
            self._made -= custom
            raise errors.NameVanished(str(exc)) from exc

    def _make(self, key: tuple[Kind, str]) -> None:
        def make() -> None:
            self._ask('PUT', f'/{key[0]}/{key[1]}')
            self._made.add(key)

        self._once(key, lambda: key in self._made, make)

    def _once(
        self,
        key: Hashable,
        is_known: Callable[[], bool],
        ask: Callable[[], None],
    ) -> None:
        """Ask, unless it is known by now or somebody is asking."""
        with self._lock:
            if is_known():
                return
            answer = self._asking.get(key)
            asks = answer is None
            if answer is None:
                answer = self._asking[key] = futures.Future()
        if asks:
            try:
                ask()
                answer.set_result(None)
            except BaseException as exc:
                answer.set_exception(exc)
            finally:
                del self._asking[key]
        answer.result()

    def _look_up(self, traits: frozenset[str]) -> None:
        known = self._known(traits)
        self._standard.update({trait: trait in known for trait in traits})
        unknown = ', '.join(sorted(traits - known))
        if unknown:
            LOG.info(
                'Placement does not know %(traits)s; left out of all nodes',
                {'traits': unknown},
            )

    def _known(self, traits: frozenset[str]) -> frozenset[str]:
        asked = ','.join(sorted(traits))
        answer = self._ask('GET', f'/traits?name=in:{asked}')
        return traits & frozenset(answer['traits'])


def _is_custom(name: str) -> bool:
    return bool(os_resource_classes.is_custom(name))
