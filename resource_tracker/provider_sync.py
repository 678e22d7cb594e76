# SPDX-License-Identifier: Apache-2.0
"""Writes the wanted provider of one node to Placement.

The reconciler's threads call it, one thread for each node at a time.
``ProviderSync.sync`` compares the wanted provider with the node's
``ProviderState`` and writes the difference. It may be called at any time and
any number of times; an unchanged node costs no request.
"""

import dataclasses
from collections.abc import Callable

import attrs

from resource_tracker import delta, errors, interning
from resource_tracker.disk_cache import DiskCache, NoDiskCache
from resource_tracker.placement import Clock, Placement
from resource_tracker.provider import WantedProvider
from resource_tracker.provider_index import ProviderIndex
from resource_tracker.provider_state import ProviderState

# The second try follows a conflict. The third one follows if a resource class
# was allocated during the second.
_TRIES = 3

# Errors after which the provider is read again.
_OUTDATED = (
    errors.GenerationConflict,
    errors.NameVanished,
    errors.ProviderExists,
    errors.ProviderInUse,
    errors.ProviderNotFound,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Synced:
    """The provider in Placement is as wanted, except for the kept classes.

    :param writes_count: number of writes that were sent
    :param kept: unwanted classes that stay because something is allocated
    """

    writes_count: int
    kept: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class NotRead:
    """Nothing was written, because the provider must be read first."""


@attrs.define(eq=False, repr=False, slots=False)
class ProviderSync:
    """Writes wanted providers; each call blocks and holds no lock.

    :param disk_cache: states that an earlier process saved
    """

    _placement: Placement
    _clock: Clock
    _disk_cache: DiskCache = attrs.field(factory=NoDiskCache)

    def __attrs_post_init__(self) -> None:
        self.provider_index = ProviderIndex(self._placement, self._clock)

    def sync(
        self,
        wanted: WantedProvider,
        state: ProviderState,
        require: Callable[[], None],
        *,
        may_read: bool = True,
    ) -> Synced | NotRead:
        """Change a node's provider in Placement into the wanted provider.

        Reads the provider again after a conflict, and tries at most three
        times.

        :param require: called before each write and again directly before it
            is sent; raises if the write is not allowed any more
        :param may_read: False: do nothing if the provider has to be read first
        :raises errors.PlacementError: a request failed; ``state`` has the
            result of the writes before it
        """
        if not may_read and self._must_read(wanted, state):
            return NotRead()
        for _ in range(_TRIES - 1):
            try:
                return self._try(wanted, state, require)
            except _OUTDATED:
                self._reread(wanted.uuid, state)
        return self._try(wanted, state, require)

    def _must_read(self, wanted: WantedProvider, state: ProviderState) -> bool:
        """Return whether the provider has to be read before a write."""
        if state.known is None:
            listed = self.provider_index.find_provider(wanted.uuid)
            if listed is not None and not self._load_saved(wanted, state):
                return True
        return state.is_stale or _lacks_aggregates(wanted, state.known)

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
            # A new provider with this uuid can reach the generation saved on
            # disk and be mistaken for the old one.
            self._disk_cache.discard(wanted.uuid)
        wanted = self._with_supported_traits(wanted, known)
        writes = _plan(known, wanted, state)
        current = known or delta.new_provider(wanted.uuid)
        for change in writes:
            require()
            current = self._write(change, current, wanted, state, require)
            if change is not writes[-1]:
                # Saved after each write, because the process may be killed
                # before the next one.
                self._save(wanted, state)
        ours = wanted.traits
        if not any(isinstance(w, delta.PutTraits) for w in writes):
            # A write of traits without an answer may still have set these.
            ours = interning.names(ours | (state.our_traits - current.traits))
        state.is_saved &= state.our_traits == ours
        state.known, state.our_traits = current, ours
        self._save(wanted, state)
        return Synced(len(writes), delta.kept_classes(current, wanted))

    def _save(self, wanted: WantedProvider, state: ProviderState) -> None:
        """Save the state in the disk cache, if it differs from what is there.

        Between two writes of a plan, ``our_traits`` includes the former
        traits, until the write that removes them.
        """
        if state.is_saved and state.row_id == wanted.row_id:
            return
        state.row_id = wanted.row_id
        self._disk_cache.save(wanted.uuid, state)
        state.is_saved = True

    def _with_supported_traits(
        self, wanted: WantedProvider, known: delta.KnownProvider | None
    ) -> WantedProvider:
        """Return the wanted provider without the unsupported traits.

        These are standard traits that this Placement is too old for. Traits
        that the provider has already are not checked.
        """
        present = wanted.traits & (known.traits if known else frozenset())
        new = wanted.traits - present
        usable = present | self._placement.supported_traits(new)
        return dataclasses.replace(wanted, traits=interning.names(usable))

    def _write(
        self,
        change: delta.Write,
        current: delta.KnownProvider,
        wanted: WantedProvider,
        state: ProviderState,
        require: Callable[[], None],
    ) -> delta.KnownProvider:
        def before_sending() -> None:
            # ``require`` was called before ``Placement.write``, which may have
            # taken a minute to create traits and classes, so it is called
            # again.
            require()
            if isinstance(change, delta.PutTraits):
                self._add_our_traits(wanted, state)
            state.is_saved = False
            state.sent_generation = current.generation

        generation = self._placement.write(
            change, current.generation, before_sending
        )
        if isinstance(change, delta.Create):
            self.provider_index.add_provider(wanted.uuid)
        state.known = delta.after_write(current, change, generation)
        return state.known

    def _add_our_traits(
        self, wanted: WantedProvider, state: ProviderState
    ) -> None:
        """Add traits to ``our_traits`` before they are sent, also on disk.

        If the answer is lost or the process is killed, Placement may have
        them.
        """
        if not wanted.traits <= state.our_traits:
            state.our_traits = interning.names(
                state.our_traits | wanted.traits
            )
            state.is_saved = False
            self._save(wanted, state)

    def _known_provider(
        self, wanted: WantedProvider, state: ProviderState
    ) -> delta.KnownProvider | None:
        """Return the known provider; reads it, and its usage, if necessary."""
        if state.is_stale:
            self._reread(wanted.uuid, state)
        # Kept before anything is sent: the disk cache saves nothing without.
        known = state.known = state.known or self._first_known(wanted, state)
        if known is None:
            return None
        if _lacks_aggregates(wanted, known):
            known = state.known = self._with_aggregates(known)
            state.is_saved = False
        in_use = None
        if delta.dropped_classes(known, wanted):
            # The generation was read before the usage. Therefore, if a class
            # is allocated after the usage was read, the write is a conflict.
            in_use = self._placement.read_classes_in_use(known.uuid)
        return dataclasses.replace(known, in_use=in_use)

    def _first_known(
        self, wanted: WantedProvider, state: ProviderState
    ) -> delta.KnownProvider | None:
        listed = self.provider_index.find_provider(wanted.uuid)
        if listed is None:
            return None
        if self._load_saved(wanted, state):
            return state.known
        return self._placement.read_provider(listed.uuid)

    def _load_saved(
        self, wanted: WantedProvider, state: ProviderState
    ) -> bool:
        """Use the saved state of an earlier process, if it is up to date.

        Return whether it is up to date. The saved state is not used if the
        node has got another row in Nova since, because another host may have
        deleted the provider and created one with the same uuid and, by now,
        the same generation. If only the generation differs, ``our_traits``
        alone is used.
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

    def _with_aggregates(
        self, known: delta.KnownProvider
    ) -> delta.KnownProvider:
        aggregates, generation = self._placement.read_aggregates(known.uuid)
        if generation != known.generation:
            raise errors.GenerationConflict(known.uuid)
        return dataclasses.replace(known, aggregates=aggregates)

    def _reread(self, node: str, state: ProviderState) -> None:
        uuid = (
            state.known.uuid
            if state.known
            else self._placement.read_provider_uuid(node)
        )
        state.known = self._placement.read_provider(uuid) if uuid else None
        state.is_stale = state.is_inferred = state.is_saved = False


def _plan(
    known: delta.KnownProvider | None,
    wanted: WantedProvider,
    state: ProviderState,
) -> tuple[delta.Write, ...]:
    """Return the writes to send.

    :raises errors.GenerationConflict: the provider must be read first
    """
    writes = delta.plan_writes(known, wanted, state.our_traits)
    if state.is_inferred and any(map(_may_remove_others, writes)):
        # Only the generation is up to date, not the traits and aggregates of
        # other clients, which the write would replace. Therefore the provider
        # is read again, as after a conflict.
        raise errors.GenerationConflict(wanted.uuid)
    if known and not writes and known.generation == state.sent_generation:
        # The state before the write without an answer is wanted again. This
        # write changes nothing but the generation: it is a conflict if that
        # one was carried out, and otherwise that one is a conflict later.
        return (delta.PutInventories(known.uuid, known.inventories),)
    return writes


def _lacks_aggregates(
    wanted: WantedProvider, known: delta.KnownProvider | None
) -> bool:
    """Return whether the provider's aggregates must be read before a plan."""
    if known is None or wanted.aggregates is None:
        return False
    return known.aggregates is None


def _may_remove_others(change: delta.Write) -> bool:
    """Return whether a write replaces values that other clients also set."""
    return isinstance(change, delta.PutTraits | delta.PutAggregates)
