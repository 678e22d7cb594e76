# SPDX-License-Identifier: Apache-2.0
"""What a worker remembers of one node's provider."""

import dataclasses

from resource_tracker.delta import KnownProvider


@dataclasses.dataclass(slots=True)
class ProviderState:
    """What is remembered of one node; only its present thread writes it.

    :param known: None: not looked at yet
    :param ours: traits that we have set, or may have: an answer was lost
    :param is_doubtful: somebody else wrote the provider, or a build has
        been allocated on it: look again
    :param is_inferred: its generation is an allocation's, as Nova saw it;
        nobody looked whether that was the one write since
    :param is_noted: the ledger has all of this
    :param row_id: see provider.Situation; of when this was remembered
    """

    known: KnownProvider | None = None
    our_traits: frozenset[str] = frozenset()
    is_stale: bool = False
    is_inferred: bool = False
    is_saved: bool = False
    row_id: str = ''

    def apply_allocation(self, generation: int | None) -> None:
        """A build was allocated on the provider.

        That is a write, which changes nothing of what is known here but the
        generation: one write since what is known will have been that one.

        :param generation: the provider's, with the allocation; None: not told
        """
        known = self.known
        if known is None:
            return
        if generation is None or generation > known.generation + 1:
            self.is_stale = True
        elif generation == known.generation + 1:
            self.known = dataclasses.replace(known, generation=generation)
            self.is_inferred, self.is_saved = True, False
