# SPDX-License-Identifier: Apache-2.0
"""The interface of the metrics, and the meter that counts nothing."""

import inspect

import pytest

from ironic_compute.metrics import Metrics
from resource_tracker.meter import Meter, NoMeter

METHODS = [
    name
    for name, member in vars(Meter).items()
    if inspect.isfunction(member) and not name.startswith('_')
]


@pytest.mark.parametrize('meter', [NoMeter, Metrics])
@pytest.mark.parametrize('name', METHODS)
def test_each_meter_has_the_methods_of_the_interface(meter, name):
    """A meter takes the same arguments as the interface states."""
    stated = inspect.signature(getattr(Meter, name)).parameters
    assert inspect.signature(getattr(meter, name)).parameters == stated


def test_meter_that_counts_nothing_accepts_each_count():
    """Each method of ``NoMeter`` returns without an error."""
    meter = NoMeter()
    with meter.waiting():
        pass
    assert meter.count_request('GET', 'traits', '200', 0.1) is None
    assert meter.count_report(0.1) is None
    assert meter.count_drift(1) is None
