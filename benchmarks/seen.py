# SPDX-License-Identifier: Apache-2.0
"""The state of one node in the databases of Ironic and Placement."""

import dataclasses

TRAIT = 'CUSTOM_BENCHMARK'
# States of a node between a deleted server and the next server.
NOT_CLEAN = ('deleting', 'cleaning', 'clean wait', 'clean failed')


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """The state of one node at one moment, in Ironic and in Placement.

    :param is_offered: Placement offers it to any build
    :param has_inventory: its provider has an inventory
    """

    node: str
    state: str
    has_maintenance: bool
    has_class: bool
    has_trait: bool
    is_offered: bool
    has_inventory: bool
    shows_trait: bool
    is_allocated: bool
