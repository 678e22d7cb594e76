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
    after_write,
    dropped_classes,
    kept_classes,
    new_provider,
    plan_writes,
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
        state: ProviderState,
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
                return self._try(wanted, state, require)
            except _OUTDATED:
                self._reread(wanted.uuid, state)
        return self._try(wanted, state, require)

    def sync_if_read(
        self,
        wanted: WantedProvider,
        state: ProviderState,
        require: Callable[[], None],
    ) -> Synced | NotRead:
        """Do the same, unless a provider has to be read before."""
        if state.known is None:
            listed = self.provider_index.find_provider(wanted.uuid)
            if listed is not None and not self._load_saved(wanted, state):
                return NotRead()
        if state.is_stale:
            return NotRead()
        return self.sync(wanted, state, require)

    def _provider_uuid(self, node: str, state: ProviderState) -> str | None:
        """Return the uuid of a node's provider; None if there is none."""
        if state.known is not None:
            return state.known.uuid
        return self._placement.read_provider_uuid(node)

    def _try(
        self,
        wanted: WantedProvider,
        state: ProviderState,
        require: Callable[[], None],
    ) -> Synced:
        known = self._known_provider(wanted, state)
        if wanted.is_gone:
            if known is None:
                return Synced(0)
            wanted = dataclasses.replace(wanted, traits=state.our_traits)
        if known is None:
            # The next one of this uuid may come to the generation that is
            # on the disk, and would be taken for the former.
            self._disk_cache.discard(wanted.uuid)
        wanted = self._with_supported_traits(wanted, known)
        writes = plan_writes(known, wanted, state.our_traits)
        if state.is_inferred and any(map(_may_remove_others, writes)):
            # As if it had been refused: what others set is to be read first.
            raise errors.GenerationConflict(wanted.uuid)
        current = known or new_provider(wanted.uuid)
        for change in writes:
            require()
            current = self._write(change, current, wanted, state, require)
            if change is not writes[-1]:
                self._save(wanted, state)  # This life may end here.
        state.is_saved &= state.our_traits == wanted.traits
        state.known, state.our_traits = current, wanted.traits
        self._save(wanted, state)
        return Synced(len(writes), kept_classes(current, wanted))

    def _save(self, wanted: WantedProvider, state: ProviderState) -> None:
        """Keep what is known by now, if the ledger has anything else.

        Between two writes of a plan ``ours`` has the former traits as well:
        those that are to go are there until the write that takes them away.
        """
        if state.is_saved and state.row_id == wanted.row_id:
            return
        state.row_id = wanted.row_id
        self._disk_cache.save(wanted.uuid, state)
        state.is_saved = True

    def _with_supported_traits(
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
        current: KnownProvider,
        wanted: WantedProvider,
        state: ProviderState,
        require: Callable[[], None],
    ) -> KnownProvider:
        def before_sending() -> None:
            # Once more: new names were made since, which may take a minute.
            require()
            if isinstance(change, PutTraits):
                self._add_our_traits(wanted, state)
            state.is_saved = False

        generation = self._placement.write(
            change, current.generation, before_sending
        )
        if isinstance(change, Create):
            self.provider_index.add_provider(wanted.uuid)
        state.known = after_write(current, change, generation)
        return state.known

    def _add_our_traits(
        self, wanted: WantedProvider, state: ProviderState
    ) -> None:
        """Remember traits as ours before they are sent, on disk too.

        The answer may be lost, or this life end, and the traits are there.
        """
        if not wanted.traits <= state.our_traits:
            state.our_traits = interning.names(
                state.our_traits | wanted.traits
            )
            state.is_saved = False
            self._save(wanted, state)

    def _known_provider(
        self, wanted: WantedProvider, state: ProviderState
    ) -> KnownProvider | None:
        """Return what is known, with what is in use if that matters."""
        if state.is_stale:
            self._reread(wanted.uuid, state)
        known = state.known or self._first_known(wanted, state)
        if known is None:
            return None
        if wanted.aggregates is not None and known.aggregates is None:
            known = state.known = self._with_aggregates(known)
            state.is_saved = False
        in_use = None
        if dropped_classes(known, wanted):
            # The generation was read before this: an allocation in between
            # makes the write a conflict.
            in_use = self._placement.read_classes_in_use(known.uuid)
        return dataclasses.replace(known, in_use=in_use)

    def _first_known(
        self, wanted: WantedProvider, state: ProviderState
    ) -> KnownProvider | None:
        listed = self.provider_index.find_provider(wanted.uuid)
        if listed is None:
            return None
        if self._load_saved(wanted, state):
            return state.known
        return self._placement.read_provider(listed.uuid)

    def _load_saved(
        self, wanted: WantedProvider, state: ProviderState
    ) -> bool:
        """Remember an earlier life, if nobody wrote the provider since.

        Who served the host meanwhile may have deleted the node's provider
        and made another, of the same uuid, which now is of that generation.
        Else the traits that we had set are ours, whoever wrote it since.
        """
        earlier = self._disk_cache.take(wanted.uuid)
        if earlier is None or earlier.known is None:
            return False
        if earlier.row_id != wanted.row_id:
            return False
        known, state.our_traits = earlier.known, earlier.our_traits
        listed = self.provider_index.find_fresh_provider(wanted.uuid)
        if listed is None or (
            (known.uuid, known.generation) != (listed.uuid, listed.generation)
        ):
            return False
        state.known, state.row_id = known, earlier.row_id
        state.is_inferred, state.is_saved = earlier.is_inferred, True
        return True

    def _with_aggregates(self, known: KnownProvider) -> KnownProvider:
        aggregates, generation = self._placement.read_aggregates(known.uuid)
        if generation != known.generation:
            raise errors.GenerationConflict(known.uuid)
        return dataclasses.replace(known, aggregates=aggregates)

    def _reread(self, node: str, state: ProviderState) -> None:
        uuid = self._provider_uuid(node, state)
        state.known = self._placement.read_provider(uuid) if uuid else None
        state.is_stale = state.is_inferred = state.is_saved = False


def _may_remove_others(change: Write) -> bool:
    """Say whether a write replaces what others may have set as well."""
    return isinstance(change, PutTraits | PutAggregates)
