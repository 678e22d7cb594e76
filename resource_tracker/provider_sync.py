# SPDX-License-Identifier: Apache-2.0
"""One node at a time: look, take the difference, write it.

``ProviderSync.sync`` is level-triggered: it may be called at any time, as
often as one likes, and ends when Placement says what is wanted or
raises. What it learns stays in the node's ``ProviderState``, so that an
unchanged node costs no request. Whoever calls sees to it that
one node is said by one thread.
"""

import dataclasses
from collections.abc import Callable

from resource_tracker import errors, interning
from resource_tracker.delta import (
    Create,
    KnownProvider,
    PutAggregates,
    PutTraits,
    Write,
    after,
    dropped,
    kept,
    new_provider,
    plan,
)
from resource_tracker.disk_cache import DiskCache, NoDiskCache
from resource_tracker.placement import Clock, Placement
from resource_tracker.provider import WantedProvider
from resource_tracker.provider_index import ProviderIndex
from resource_tracker.provider_state import ProviderState

# One conflict is read again and tried once more; a provider that also turns
# out to be in use just then has one try left.
_TRIES = 3

# What another look at the provider may put right.
_OUTDATED = (
    errors.GenerationConflict,
    errors.NameVanished,
    errors.ProviderExists,
    errors.ProviderInUse,
    errors.ProviderNotFound,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Synced:
    """Placement says what is wanted, but for what must wait.

    :param kept: classes that stay because something of them is allocated
    """

    writes_count: int
    kept: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class NotRead:
    """There is a provider that has to be read first, and it is not urgent."""


class ProviderSync:
    """Write what is wanted of a node; blocks, holds no lock.

    :param ledger: what an earlier life was told by Placement
    """

    def __init__(
        self,
        placement: Placement,
        clock: Clock,
        disk_cache: DiskCache | None = None,
    ) -> None:
        self._placement = placement
        self._disk_cache = disk_cache or NoDiskCache()
        self.provider_index = ProviderIndex(placement, clock)

    def sync(
        self,
        wanted: WantedProvider,
        memory: ProviderState,
        require: Callable[[], None],
    ) -> Synced:
        """Make Placement say what is wanted of a node.

        :param require: called before each write, and again just before it is
            sent; raises if it is not to be
        :raises errors.PlacementError: it did not work; what was written
            before is remembered
        """
        for _ in range(_TRIES - 1):
            try:
                return self._try(wanted, memory, require)
            except _OUTDATED:
                self._look_again(wanted.uuid, memory)
        return self._try(wanted, memory, require)

    def sync_if_read(
        self,
        wanted: WantedProvider,
        memory: ProviderState,
        require: Callable[[], None],
    ) -> Synced | NotRead:
        """Do the same, unless a provider has to be read before."""
        if memory.known is None:
            listed = self.provider_index.find(wanted.uuid)
            if listed is not None and not self._recall(wanted, memory):
                return NotRead()
        if memory.is_doubtful:
            return NotRead()
        return self.sync(wanted, memory, require)

    def provider_of(self, node: str, memory: ProviderState) -> str | None:
        """Return the uuid of a node's provider; None if there is none."""
        if memory.known is not None:
            return memory.known.uuid
        return self._placement.read_provider_uuid(node)

    def _try(
        self,
        wanted: WantedProvider,
        memory: ProviderState,
        require: Callable[[], None],
    ) -> Synced:
        known = self._look(wanted, memory)
        if wanted.is_gone:
            if known is None:
                return Synced(0)
            wanted = dataclasses.replace(wanted, traits=memory.ours)
        if known is None:
            # The next one of this uuid may come to the generation that is
            # on the disk, and would be taken for the former.
            self._disk_cache.strike(wanted.uuid)
        wanted = self._usable(wanted, known)
        writes = plan(known, wanted, memory.ours)
        if memory.is_inferred and any(map(_takes_others_with_it, writes)):
            # As if it had been refused: what others set is to be read first.
            raise errors.GenerationConflict(wanted.uuid)
        now = known or new_provider(wanted.uuid)
        for change in writes:
            require()
            now = self._write(change, now, wanted, memory, require)
            if change is not writes[-1]:
                self._note(wanted, memory)  # This life may end here.
        memory.is_noted &= memory.ours == wanted.traits
        memory.known, memory.ours = now, wanted.traits
        self._note(wanted, memory)
        return Synced(len(writes), kept(now, wanted))

    def _note(self, wanted: WantedProvider, memory: ProviderState) -> None:
        """Keep what is known by now, if the ledger has anything else.

        Between two writes of a plan ``ours`` has the former traits as well:
        those that are to go are there until the write that takes them away.
        """
        if memory.is_noted and memory.row_id == wanted.row_id:
            return
        memory.row_id = wanted.row_id
        self._disk_cache.note(wanted.uuid, memory)
        memory.is_noted = True

    def _usable(
        self, wanted: WantedProvider, known: KnownProvider | None
    ) -> WantedProvider:
        """Leave out the traits that this Placement cannot hold.

        What it holds already is not asked for.
        """
        held = wanted.traits & (known.traits if known else frozenset())
        usable = held | self._placement.supported_traits(wanted.traits - held)
        return dataclasses.replace(wanted, traits=interning.names(usable))

    def _write(
        self,
        change: Write,
        now: KnownProvider,
        wanted: WantedProvider,
        memory: ProviderState,
        require: Callable[[], None],
    ) -> KnownProvider:
        def leave() -> None:
            # Once more: new names were made since, which may take a minute.
            require()
            if isinstance(change, PutTraits):
                self._own(wanted, memory)
            memory.is_noted = False

        generation = self._placement.write(change, now.generation, leave)
        if isinstance(change, Create):
            self.provider_index.made(wanted.uuid)
        memory.known = after(now, change, generation)
        return memory.known

    def _own(self, wanted: WantedProvider, memory: ProviderState) -> None:
        """Remember traits as ours before they are sent, on disk too.

        The answer may be lost, or this life end, and the traits are there.
        """
        if not wanted.traits <= memory.ours:
            memory.ours = interning.names(memory.ours | wanted.traits)
            memory.is_noted = False
            self._note(wanted, memory)

    def _look(
        self, wanted: WantedProvider, memory: ProviderState
    ) -> KnownProvider | None:
        """Return what is known, with what is in use if that matters."""
        if memory.is_doubtful:
            self._look_again(wanted.uuid, memory)
        known = memory.known or self._first_look(wanted, memory)
        if known is None:
            return None
        if wanted.aggregates is not None and known.aggregates is None:
            known = memory.known = self._with_aggregates(known)
            memory.is_noted = False
        in_use = None
        if dropped(known, wanted):
            # The generation was read before this: an allocation in between
            # makes the write a conflict.
            in_use = self._placement.read_classes_in_use(known.uuid)
        return dataclasses.replace(known, in_use=in_use)

    def _first_look(
        self, wanted: WantedProvider, memory: ProviderState
    ) -> KnownProvider | None:
        listed = self.provider_index.find(wanted.uuid)
        if listed is None:
            return None
        if self._recall(wanted, memory):
            return memory.known
        return self._placement.read_provider(listed.uuid)

    def _recall(self, wanted: WantedProvider, memory: ProviderState) -> bool:
        """Remember an earlier life, if nobody wrote the provider since.

        Who served the host meanwhile may have deleted the node's provider
        and made another, of the same uuid, which now is of that generation.
        Else the traits that we had set are ours, whoever wrote it since.
        """
        earlier = self._disk_cache.recall(wanted.uuid)
        if earlier is None or earlier.known is None:
            return False
        if earlier.row_id != wanted.row_id:
            return False
        known, memory.ours = earlier.known, earlier.ours
        listed = self.provider_index.find_as_it_is(wanted.uuid)
        if listed is None or (
            (known.uuid, known.generation) != (listed.uuid, listed.generation)
        ):
            return False
        memory.known, memory.row_id = known, earlier.row_id
        memory.is_inferred, memory.is_noted = earlier.is_inferred, True
        return True

    def _with_aggregates(self, known: KnownProvider) -> KnownProvider:
        aggregates, generation = self._placement.read_aggregates(known.uuid)
        if generation != known.generation:
            raise errors.GenerationConflict(known.uuid)
        return dataclasses.replace(known, aggregates=aggregates)

    def _look_again(self, node: str, memory: ProviderState) -> None:
        uuid = self.provider_of(node, memory)
        memory.known = self._placement.read_provider(uuid) if uuid else None
        memory.is_doubtful = memory.is_inferred = memory.is_noted = False


def _takes_others_with_it(change: Write) -> bool:
    """Say whether a write replaces what others may have set as well."""
    return isinstance(change, PutTraits | PutAggregates)
