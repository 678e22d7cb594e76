# SPDX-License-Identifier: Apache-2.0
"""The virt driver's interface to Nova."""

from nova.virt import driver as nova_driver

from ironic_compute.driver.driver import IronicComputeDriver

from . import fake

# Methods that the ComputeManager and the recovery of this package call.
_OUR_OWN = {
    'assume_node',
    'cancel_build',
    'free_node',
    'free_node_of',
    'is_build_cancelled',
    'is_rescue_begun',
    'list_waiting_threads',
    'set_up',
    'wait_for_deploy',
    'why_no_attach',
    'why_no_detach',
    'why_no_rescue',
}


def test_other_methods_have_names_that_nova_calls():
    """Each public method overrides a method of the installed Nova.

    Nova would never call a method that a newer Nova has renamed.
    """
    names = {
        name
        for name, member in vars(IronicComputeDriver).items()
        if callable(member) and not name.startswith('_')
    }
    assert {
        name for name in names if not hasattr(nova_driver.ComputeDriver, name)
    } == _OUR_OWN


def test_driver_declares_the_capabilities_of_bare_metal():
    """Nova refuses an operation without its capability before the driver."""
    capabilities = IronicComputeDriver.capabilities
    assert {name for name, has in capabilities.items() if has} == {
        'supports_attach_interface',
        'supports_image_type_ami',
        'supports_image_type_qcow2',
        'supports_image_type_raw',
    }


def test_methods_that_do_nothing_send_nothing():
    """The start of a worker and the cleanup of a server send no request."""
    bench = fake.bench_with_server()
    bench.driver.init_host('bm-1')
    bench.driver.plug_vifs(fake.server(), fake.network())
    bench.driver.cleanup(None, fake.server(), fake.network())
    assert not bench.ironic.calls
    assert bench.driver.manages_network_binding_host_id()
    assert bench.driver.network_binding_host_id(None, fake.server()) is None


def test_node_of_an_unclaimed_server_can_be_assumed():
    """Within ``assume_node``, a server without a node has a connector."""
    bench = fake.bench()
    bench.ironic.connectors = [{'type': 'ip', 'connector_id': '192.0.2.7'}]
    server = fake.server(node=None)
    with bench.driver.assume_node(server, fake.NODE):
        connector = bench.driver.get_volume_connector(server)
    assert connector['ip'] == '192.0.2.7'
