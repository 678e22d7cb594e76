# SPDX-License-Identifier: Apache-2.0
"""The state that a worker keeps of one node's provider."""

import dataclasses

from resource_tracker.delta import KnownProvider


@dataclasses.dataclass(slots=True)
class ProviderState:
    """The state of one node's provider; only one thread at a time changes it.

    :param known: the provider as Placement last returned it; None: not read
    :param our_traits: traits that we have set, or may have set if an answer
        was lost
    :param is_stale: another client wrote the provider, or an allocation with
        an unknown generation was made; the provider must be read again
    :param is_inferred: ``known.generation`` is the one that Nova read with an
        allocation; the provider itself was not read, so the traits and
        aggregates of ``known`` may be outdated
    :param is_saved: the disk cache has all of this
    :param row_id: see ``provider.Situation``; the value at the last save
    :param sent_generation: the generation that the last write carried. While
        the provider has it, that write had no answer, and Placement may have
        carried it out, or may do so yet
    """

    known: KnownProvider | None = None
    our_traits: frozenset[str] = frozenset()
    is_stale: bool = False
    is_inferred: bool = False
    is_saved: bool = False
    row_id: str = ''
    sent_generation: int | None = None

    def apply_allocation(self, generation: int | None) -> None:
        """Update the state for the allocation of a build on the provider.

        The allocation is a write that changes only the generation. If the new
        generation is the next after the known one, it is assumed to be the
        only write; ``is_inferred`` records this.

        :param generation: the provider's generation after the allocation;
            None: not known
        """
        known = self.known
        if known is None:
            return
        if generation is None or generation > known.generation + 1:
            self.is_stale = True
        elif generation == known.generation + 1:
            self.known = dataclasses.replace(known, generation=generation)
            self.is_inferred, self.is_saved = True, False
