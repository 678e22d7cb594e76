# SPDX-License-Identifier: Apache-2.0
"""One node at a time: look, take the difference, write it.

``Scribe.say`` is level-triggered: it may be called at any time, as often as
one likes, and ends when Placement says what is wanted or raises. What it
learns stays in the node's ``Memory``, so that an unchanged node costs no
request. Whoever calls sees to it that one node is said by one thread.
"""

import dataclasses
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Protocol

from resource_tracker import errors
from resource_tracker.delta import (
    Create,
    KnownProvider,
    PutTraits,
    Write,
    after,
    dropped,
    kept,
    plan,
)
from resource_tracker.placement import Placement
from resource_tracker.provider import WantedProvider

# One conflict is read again and tried once more; a provider that also turns
# out to be in use just then has one try left.
_TRIES = 3

# A list this old still says what there is, but not what there is not.
_CENSUS_FRESH_S = 30.0

# What another look at the provider may put right.
_OUTDATED = (
    errors.GenerationConflict,
    errors.NameVanished,
    errors.ProviderExists,
    errors.ProviderInUse,
    errors.ProviderNotFound,
)


class Clock(Protocol):
    """What is needed of time."""

    def now_s(self) -> float:
        """Seconds on a scale that never jumps."""


@dataclasses.dataclass(slots=True)
class Memory:
    """What is remembered of one node; only its present thread writes it.

    :param known: None: not looked at yet, or to be looked at again
    :param ours: traits that we have set, or may have: an answer was lost
    """

    known: KnownProvider | None = None
    ours: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """Placement says what is wanted, but for what must wait.

    :param kept: classes that stay because something of them is allocated
    """

    writes_count: int
    kept: frozenset[str] = frozenset()


class Census:
    """Which providers there were at first sight: one request for all.

    Any thread may call. The first asks, the others wait for its answer; an
    error reaches all of them, and the next call asks anew.
    """

    def __init__(self, placement: Placement, clock: Clock) -> None:
        self._placement = placement
        self._clock = clock
        self._lock = threading.Lock()
        self._answer: futures.Future[dict[str, str]] | None = None
        self._asked_at_s = 0.0

    def uuid_of(self, node: str) -> str | None:
        """Return the uuid of a node's provider; None if there is none.

        A provider of another uuid with the node's name is one that Nova made
        before it gave both the same uuid.
        """
        uuid = self._providers().get(node)
        age_s = self._clock.now_s() - self._asked_at_s
        if uuid is not None or age_s < _CENSUS_FRESH_S:
            return uuid
        return self._placement.find(node)

    def made(self, node: str) -> None:
        """Note a provider that is new since the list."""
        self._providers()[node] = node

    def _providers(self) -> dict[str, str]:
        with self._lock:
            answer, asks = self._answer, _failed(self._answer)
            if answer is None or asks:
                self._answer = answer = futures.Future()
                asks = True
        if asks:
            self._ask(answer)
        return answer.result()

    def _ask(self, answer: 'futures.Future[dict[str, str]]') -> None:
        self._asked_at_s = self._clock.now_s()
        try:
            listed = self._placement.providers().values()
            names = {found.name: found.uuid for found in listed}
            answer.set_result(
                names | {found.uuid: found.uuid for found in listed}
            )
        except BaseException as exc:
            answer.set_exception(exc)


def _failed(answer: 'futures.Future[dict[str, str]] | None') -> bool:
    return bool(answer and answer.done() and answer.exception())


class Scribe:
    """Write what is wanted of a node; blocks, holds no lock."""

    def __init__(self, placement: Placement, clock: Clock) -> None:
        self._placement = placement
        self._census = Census(placement, clock)

    def say(
        self,
        wanted: WantedProvider,
        memory: Memory,
        require: Callable[[], None],
    ) -> Said:
        """Make Placement say what is wanted of a node.

        :param require: called before each write; raises if it is not to be
        :raises errors.PlacementError: it did not work; what was written
            before is remembered
        """
        usable = self._placement.usable(wanted.traits)
        wanted = dataclasses.replace(wanted, traits=usable)
        for _ in range(_TRIES - 1):
            try:
                return self._try(wanted, memory, require)
            except _OUTDATED:
                self._look_again(wanted.uuid, memory)
        return self._try(wanted, memory, require)

    def provider_of(self, node: str, memory: Memory) -> str | None:
        """Return the uuid of a node's provider; None if there is none."""
        if memory.known is not None:
            return memory.known.uuid
        return self._placement.find(node)

    def _try(
        self,
        wanted: WantedProvider,
        memory: Memory,
        require: Callable[[], None],
    ) -> Said:
        known = self._look(wanted, memory)
        writes = plan(known, wanted, memory.ours)
        now = known or KnownProvider(wanted.uuid, generation=0)
        for change in writes:
            require()
            now = self._write(change, now, wanted, memory)
        memory.known, memory.ours = now, wanted.traits
        return Said(len(writes), kept(now, wanted))

    def _write(
        self,
        change: Write,
        now: KnownProvider,
        wanted: WantedProvider,
        memory: Memory,
    ) -> KnownProvider:
        if isinstance(change, PutTraits):
            # Before the answer: it may be lost, and the traits are there.
            memory.ours |= wanted.traits
        generation = self._placement.write(change, now.generation)
        if isinstance(change, Create):
            self._census.made(wanted.uuid)
        memory.known = after(now, change, generation)
        return memory.known

    def _look(
        self, wanted: WantedProvider, memory: Memory
    ) -> KnownProvider | None:
        """Return what is known, with what is in use if that matters."""
        known = memory.known or self._first_look(wanted.uuid)
        if known is None:
            return None
        in_use = None
        if dropped(known, wanted):
            # The generation was read before this: an allocation in between
            # makes the write a conflict.
            in_use = self._placement.in_use(known.uuid)
        return dataclasses.replace(known, in_use=in_use)

    def _first_look(self, node: str) -> KnownProvider | None:
        uuid = self._census.uuid_of(node)
        return self._placement.provider(uuid) if uuid else None

    def _look_again(self, node: str, memory: Memory) -> None:
        uuid = self.provider_of(node, memory)
        memory.known = self._placement.provider(uuid) if uuid else None
