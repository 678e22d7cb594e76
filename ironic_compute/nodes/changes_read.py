# SPDX-License-Identifier: Apache-2.0
"""What one list of changed nodes has shown, as one worker tells the others.

It has a fingerprint in place of each node's facts: a worker only finds out
whether it has the same facts, and asks Ironic otherwise.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from resource_tracker.node import NodeFacts, NodeId

# More nodes than this are not told: the message would cost more than the reads
# that it saves.
_TOLD_MAX = 500
# The fields that tell two states of a node apart. ``reservation`` changes with
# each lock, and nothing depends on it. ``parent_node`` is None in each list,
# because Ironic's lists leave other nodes out.
STATE_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(NodeFacts)
    if field.compare and field.name not in ('reservation', 'parent_node')
)
# A list of all nodes does not show when they changed, since Ironic refuses to
# list that; and the formats of Ironic's API and of its notifications differ.
TIMELESS_FIELDS = tuple(name for name in STATE_FIELDS if name != 'updated_at')


def fingerprint(facts: NodeFacts, fields: Sequence[str] = STATE_FIELDS) -> str:
    """Return a text that two workers have in common if their facts are equal.

    The facts of a notification and of a read of the same state have the same
    fingerprint only if Ironic writes ``updated_at`` in the same way in both.
    """
    values = [_plain(getattr(facts, name)) for name in fields]
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value


@dataclasses.dataclass(frozen=True, slots=True)
class ChangesRead:
    """What the reader has found in one delta list.

    :param since: each node that changed at this time of Ironic's or later was
        in the list
    :param next_since: from when the reader reads its next list
    :param fingerprints: one of the facts of each node in the list; None if
        there are too many, so that each worker has to read the list
    """

    since: str
    next_since: str
    fingerprints: Mapping[NodeId, str] | None

    @classmethod
    def of(
        cls, since: str, next_since: str, changed: Sequence[NodeFacts]
    ) -> 'ChangesRead':
        """Return what a list of changed nodes has shown."""
        if len(changed) > _TOLD_MAX:
            return cls(since, next_since, None)
        fingerprints = {facts.uuid: fingerprint(facts) for facts in changed}
        return cls(since, next_since, fingerprints)
