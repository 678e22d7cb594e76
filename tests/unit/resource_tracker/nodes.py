# SPDX-License-Identifier: Apache-2.0
"""The nodes that the tests of the resource tracker report."""

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
    """Return the ready node with other values in these fields."""
    return dataclasses.replace(READY, **fields)


def numbered(number):
    """Return another ready node, with the number in its uuid."""
    return changed(uuid=NodeId(f'6f1d5c1e-0000-4000-8000-{number:012}'))
