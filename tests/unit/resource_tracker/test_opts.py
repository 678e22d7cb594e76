# SPDX-License-Identifier: Apache-2.0
"""The options of ``[resource_tracker]``: bounds, defaults, and help."""

import pytest
from oslo_config import cfg

from resource_tracker import opts


@pytest.fixture
def conf():
    """Return a configuration that has the options."""
    made = cfg.ConfigOpts()
    made([])
    opts.register_opts(made)
    return made


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('placement_parallelism', 0),
        ('placement_parallelism', 65),
        ('read_rate', 0.0),
        ('read_rate', 1001.0),
        ('aggregates_interval_s', -1.0),
    ],
)
def test_value_outside_the_bounds_is_refused(conf, name, value):
    """The option itself refuses a value that cannot work."""
    with pytest.raises(ValueError, match='Should be'):
        conf.set_override(name, value, group=opts.GROUP)


def test_zero_turns_the_read_of_aggregates_off(conf):
    """The interval between reads of the host aggregates may be 0."""
    conf.set_override('aggregates_interval_s', 0.0, group=opts.GROUP)
    assert conf.resource_tracker.aggregates_interval_s == 0.0


def test_sample_configuration_has_every_option_with_its_help(conf):
    """The generator of the sample lists each registered option."""
    ((group, listed),) = opts.list_opts()
    assert {option.dest for option in listed} == set(conf[group])
    assert all(option.help for option in listed)
