# SPDX-License-Identifier: Apache-2.0
"""Which names of traits and resource classes Placement can be told.

A CUSTOM_ name must exist before its first use; it is made once a process,
and once more if somebody removed it since. A standard name exists or does
not, by the age of Placement's own library; what it does not know is left out.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import os_resource_classes
from oslo_log import log as logging

from resource_tracker import errors

LOG = logging.getLogger(__name__)

Kind = Literal['traits', 'resource_classes']


class Names:
    """What Placement was seen to know; any thread may call.

    Two threads that meet a new name at once both ask for it: that is cheaper
    than a lock held across a request, and does no harm.

    :param ask: sends (method, url) to Placement and returns the JSON answer
    """

    def __init__(self, ask: Callable[[str, str], Any]) -> None:
        self._ask = ask
        self._made: set[tuple[Kind, str]] = set()
        self._standard: dict[str, bool] = {}

    def usable(self, traits: frozenset[str]) -> frozenset[str]:
        """Return the traits that can be written: one request at most."""
        standard = {t for t in traits if not _is_custom(t)}
        unseen = standard - self._standard.keys()
        if unseen:
            self._look_up(unseen)
        return frozenset(t for t in traits if self._standard.get(t, True))

    @contextlib.contextmanager
    def made(self, kind: Kind, names: Iterable[str]) -> Iterator[None]:
        """See that custom names exist while something is written with them.

        :raises errors.NameVanished: Placement refused the write, and a name
            that somebody removed may be why; the next try makes it anew
        """
        custom = {(kind, name) for name in names if _is_custom(name)}
        new = custom - self._made
        for key in sorted(new):
            self._ask('PUT', f'/{kind}/{key[1]}')
        self._made |= new
        try:
            yield
        except errors.PlacementRefused as exc:
            if new == custom:
                raise  # All were just made: it is something else.
            # Which name is missing is not said in a way to rely on.
            self._made -= custom
            raise errors.NameVanished(str(exc)) from exc

    def _look_up(self, traits: Iterable[str]) -> None:
        asked = sorted(traits)
        answer = self._ask('GET', f'/traits?name=in:{",".join(asked)}')
        known = frozenset(answer['traits'])
        for trait in asked:
            self._standard[trait] = trait in known
        unknown = ', '.join(t for t in asked if t not in known)
        if unknown:
            LOG.info(
                'Placement does not know %(traits)s; left out of all nodes',
                {'traits': unknown},
            )


def _is_custom(name: str) -> bool:
    return bool(os_resource_classes.is_custom(name))
