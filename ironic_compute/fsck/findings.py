# SPDX-License-Identifier: Apache-2.0
"""Findings: one inconsistency that a check has found, with its cure."""

import dataclasses

from hashring.ring import Host
from ironic_compute.catalogue import Check
from resource_tracker.node import NodeId


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about; two looks find the same if this is equal.

    :param server: the uuid of a server, or of a consumer in Placement
    :param other: the name of a flavor, trait, aggregate, …
    """

    node: NodeId | None = None
    server: str | None = None
    host: Host | None = None
    other: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency.

    :param text: a sentence that says what differs
    """

    check: Check
    subject: Subject
    text: str

    @property
    def key(self) -> tuple[Check, Subject]:
        """What this finding has in common with that of another look."""
        return self.check, self.subject

    @property
    def cure(self) -> str:
        """What the operator can do."""
        subject = self.subject
        return self.check.cure.format(
            node=subject.node or 'NODE',
            server=subject.server or 'SERVER',
            host=subject.host or 'HOST',
            other=subject.other,
        )
