# SPDX-License-Identifier: Apache-2.0
"""A node for tests."""

import dataclasses

from resource_tracker.node import NodeFacts, NodeId

NODE = NodeId('6f1d5c1e-0000-4000-8000-000000000001')
READY = NodeFacts(
    uuid=NODE,
    resource_class='gold.x-large',
    provision_state='available',
    power_state='power on',
    traits=frozenset({'CUSTOM_GPU'}),
)
GOLD = 'CUSTOM_GOLD_X_LARGE'


def changed(**fields):
    """The ready node, but for these fields."""
    return dataclasses.replace(READY, **fields)


def numbered(number):
    """Another ready node."""
    return changed(uuid=NodeId(f'6f1d5c1e-0000-4000-8000-{number:012}'))
