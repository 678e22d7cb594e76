# SPDX-License-Identifier: Apache-2.0
"""What a look at the databases shows of a node; pure."""

import dataclasses

TRAIT = 'CUSTOM_BENCHMARK'
# States of a node that is on its way from a deleted server to the next one.
NOT_CLEAN = ('deleting', 'cleaning', 'clean wait', 'clean failed')


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """One node at one moment: what Ironic has, what Placement has.

    :param is_offered: Placement gives it to whoever asks
    :param is_told: its provider has an inventory
    """

    node: str
    state: str
    has_maintenance: bool
    has_class: bool
    has_trait: bool
    is_offered: bool
    is_told: bool
    shows_trait: bool
    is_allocated: bool
