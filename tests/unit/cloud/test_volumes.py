# SPDX-License-Identifier: Apache-2.0
"""The Cinder of the cloud, which runs only if it is wanted."""

from onemachine import config, rights
from onemachine.dials import Dials


def test_nova_knows_cinder_only_if_it_runs(layout):
    """With the user whom the setting of the rights gives to the daemons."""
    assert 'cinder' not in config.nova(layout, 'c1')
    Dials(layout).turn('volumes', 'on')
    found = config.nova(layout, 'c1')['cinder']
    assert found['username'] == 'nova'
    assert found['catalog_info'] == 'block-storage::publicURL'
    Dials(layout).turn('rights', 'least')
    least = rights.restrict(layout, config.nova(layout, 'c1'))
    assert least['cinder']['username'] == 'ironic-compute'


def test_driver_is_the_one_that_stores_nothing(layout):
    """All else of Cinder is real."""
    found = config.cinder(layout)
    backend = found['DEFAULT']['enabled_backends']
    driver = found[backend]['volume_driver']
    assert driver == 'onemachine.record_driver.RecordDriver'


def test_catalog_has_no_cinder_until_it_is_made(layout):
    """A client would find the endpoint, and nobody there."""
    assert 'cinder' not in layout.apis
    assert layout.url('cinder').endswith('/v3')
