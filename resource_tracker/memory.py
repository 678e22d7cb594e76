# SPDX-License-Identifier: Apache-2.0
"""What a worker remembers of one node's provider."""

import dataclasses

from resource_tracker.delta import KnownProvider


@dataclasses.dataclass(slots=True)
class Memory:
    """What is remembered of one node; only its present thread writes it.

    :param known: None: not looked at yet
    :param ours: traits that we have set, or may have: an answer was lost
    :param is_doubtful: somebody else wrote the provider, or a build has
        been allocated on it: look again
    :param is_noted: the ledger has all of this
    :param record: see provider.Situation; of when this was remembered
    """

    known: KnownProvider | None = None
    ours: frozenset[str] = frozenset()
    is_doubtful: bool = False
    is_noted: bool = False
    record: str = ''
