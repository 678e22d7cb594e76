# SPDX-License-Identifier: Apache-2.0
"""A pool's lists show its own nodes alone, in however many pages."""

from collections.abc import Iterator

import nova.conf
import pytest

from tests.contract.ironic.worlds import RealWorld

# Longer than a page of the Ironic under test.
_NODES_COUNT = 9


@pytest.fixture(params=['conductor_group', 'shard'])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Offer the option that tells our pool, which is called ``ours``."""
    nova.conf.CONF.set_override(request.param, 'ours', group='ironic')
    yield request.param
    nova.conf.CONF.clear_override(request.param, group='ironic')


def test_lists_show_no_node_of_another_pool(
    real: RealWorld, kind: str
) -> None:
    """Ironic's links to the next pages name neither group nor shard."""
    pools = {
        real.enroll(): 'ours' if number % 2 else 'other'
        for number in range(_NODES_COUNT)
    }
    for node, pool in pools.items():
        real.move(node, **{kind: pool})
    ours = {node for node, pool in pools.items() if pool == 'ours'}
    assert {facts.uuid for facts in real.ironic.list_nodes()} == ours
    for since in (None, '2000-01-01T00:00:00+00:00'):
        changed = real.ironic.list_changed_nodes(since)
        assert {facts.uuid for facts in changed} == ours


def test_part_of_a_machine_is_in_no_list_and_no_pool(real: RealWorld) -> None:
    """A read of the one node shows it, and that it has a parent."""
    machine, part = real.enroll(), real.enroll()
    real.move(part, parent_node=machine)
    listed = {facts.uuid for facts in real.ironic.list_nodes()}
    assert machine in listed
    assert part not in listed
    assert not real.ironic.is_in_pool(real.ironic.read_node(part))
    assert real.ironic.is_in_pool(real.ironic.read_node(machine))
