# SPDX-License-Identifier: Apache-2.0
"""The options of `[coordination]`, and the check of their relations."""

from typing import Any

import pytest
from oslo_config import cfg

from hashring import errors, opts


def conf(**values: Any) -> cfg.ConfigOpts:
    made = cfg.ConfigOpts()
    made([])
    opts.register_opts(made)
    for name, value in values.items():
        made.set_override(name, value, group='coordination')
    return made


def test_defaults_hold_together() -> None:
    """The defaults pass the check, together with Nova's."""
    opts.check_options(
        conf(), service_down_time_s=60.0, report_interval_s=10.0
    )


@pytest.mark.parametrize(
    ('values', 'part'),
    [
        ({'lease_term_s': 6, 'lease_margin_s': 3.0}, 'lease_margin_s'),
        ({'adopt_step_s': 0.5, 'loop_interval_s': 1.0}, 'adopt_step_s'),
        ({'restart_grace_s': 31.0}, 'restart_grace_s'),
        ({'lease_term_s': 40}, 'restart_grace_s'),
    ],
)
def test_bad_relations_are_refused(values: dict[str, Any], part: str) -> None:
    """Options that cannot work together are refused by name."""
    with pytest.raises(errors.ConfigError, match=part) as caught:
        opts.check_options(
            conf(**values), service_down_time_s=60.0, report_interval_s=10.0
        )
    assert str(caught.value).startswith('[coordination] ')


def _advice_for(service_down_time_s: float) -> str:
    """Return the error about a service_down_time that no grace fits."""
    with pytest.raises(errors.ConfigError) as caught:
        opts.check_options(
            conf(restart_grace_s=0.0),
            service_down_time_s=service_down_time_s,
            report_interval_s=10.0,
        )
    return str(caught.value)


def test_advice_can_be_followed_if_no_grace_is_short_enough() -> None:
    """The advice was "0 or less", and 0 was refused as well."""
    assert 'lower lease_term_s to 10, or raise' in _advice_for(25.0)


def test_advice_can_be_followed_if_no_lease_is_short_enough() -> None:
    """The advice was to lower lease_term_s to 0 or less."""
    advice = _advice_for(15.0)
    assert 'lower lease_term_s' not in advice
    assert 'take-over: raise [DEFAULT] service_down_time' in advice


def test_report_interval_of_nova_has_its_default() -> None:
    """An agent that does not know Nova's option takes 10 s."""
    with pytest.raises(errors.ConfigError, match='restart_grace_s'):
        opts.check_options(conf(restart_grace_s=31.0), service_down_time_s=60)
    opts.check_options(conf(restart_grace_s=30.0), service_down_time_s=60)


def test_bounds_are_in_the_declaration() -> None:
    """The option itself refuses a margin below two seconds."""
    with pytest.raises(ValueError, match='greater than or equal to 2'):
        conf(lease_margin_s=1.0)


def test_the_timing_reads_every_option() -> None:
    """Timing has the values of the options; a heartbeat is a fifth."""
    timing = opts.Timing.from_conf(conf(lease_term_s=20), settle_s=7.0)
    assert timing.lease_term_s == 20.0
    assert timing.heartbeat_interval_s == 4.0
    assert timing.settle_s == 7.0


def test_registering_twice_is_once() -> None:
    """The options can be registered twice on one ConfigOpts."""
    opts.register_opts(conf())
    ((group, listed),) = opts.list_opts()
    assert group == 'coordination'
    assert all(option.help for option in listed)
