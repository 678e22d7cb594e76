# SPDX-License-Identifier: Apache-2.0
"""Read-only queries: power states, servers and nodes."""

from nova.compute import power_state

from . import fake
from .faulty import FaultyIronic


def test_info_comes_from_the_node_cache_or_from_ironic():
    """``use_cache`` decides between the node cache and a read of Ironic."""
    bench = fake.bench_with_server()
    bench.ironic.change(fake.NODE, power_state='power off')
    cached = bench.driver.get_info(fake.server())
    read = bench.driver.get_info(fake.server(), use_cache=False)
    assert cached.state == power_state.RUNNING
    assert read.state == power_state.SHUTDOWN


def test_info_without_cache_survives_an_outage():
    """The read is repeated during an outage of Ironic.

    Nova reads the power state before a reboot, which must not fail for it.
    """
    bench = fake.bench_with_server()
    faulty = FaultyIronic(bench.ironic)
    faulty.at = 0
    fake.on(faulty, bench)
    assert (
        bench.driver.get_info(fake.server(), use_cache=False).state
        == power_state.RUNNING
    )
    assert faulty.requests == ['read_node_of_instance'] * 2


def test_queries_of_nodes_and_servers():
    """The nodes and servers are those in the node cache."""
    bench = fake.bench_with_server()
    assert bench.driver.get_available_nodes() == [fake.NODE]
    assert bench.driver.get_nodenames_by_uuid() == {fake.NODE: fake.NODE}
    assert bench.driver.list_instance_uuids() == [fake.SERVER]
    assert bench.driver.get_num_instances() == 1
    assert bench.driver.node_is_available(fake.NODE)
    assert not bench.driver.is_node_deleted(fake.NODE)
    assert bench.driver.is_node_deleted(fake.OTHER)
    assert bench.driver.instance_exists(fake.server())
