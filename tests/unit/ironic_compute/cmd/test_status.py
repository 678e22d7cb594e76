# SPDX-License-Identifier: Apache-2.0
"""The checks of ``ironic-compute-status upgrade check``."""

import pathlib
from collections.abc import Iterator

import nova.conf
import pytest
from oslo_upgradecheck import upgradecheck

from hashring.group import Member
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from ironic_compute.agent.groups import group_name
from ironic_compute.cmd import status
from ironic_compute.cmd.status import PROBE_OPT, Checks
from ironic_compute.config import register_opts

CONF = nova.conf.CONF


@pytest.fixture(autouse=True)
def _options() -> Iterator[None]:
    """Register the options, and forget their values after the test."""
    register_opts(CONF)
    CONF.register_opt(PROBE_OPT)
    yield
    for name in ('backend_url', 'lease_term_s'):
        CONF.clear_override(name, group='coordination')
    for name in ('use_notifications', 'state_path'):
        CONF.clear_override(name, group='ironic_compute')


def test_backend_is_checked_with_the_configured_lease_term() -> None:
    """A member that would expire within a lease term is refused."""
    url = 'redis://127.0.0.1:1?membership_timeout=20'
    CONF.set_override('backend_url', url, group='coordination')
    CONF.set_override('lease_term_s', 30, group='coordination')
    result = Checks()._check_coordination()
    assert result.code == upgradecheck.Code.FAILURE
    assert 'lease_term_s (30)' in result.details


def test_folder_of_the_backend_is_created_before_the_first_start(
    tmp_path: pathlib.Path,
) -> None:
    """The daemon would create it as well."""
    url = f'file://{tmp_path}/backend'
    CONF.set_override('backend_url', url, group='coordination')
    result = Checks()._check_coordination()
    assert result.code == upgradecheck.Code.SUCCESS
    assert result.details.startswith('0 daemons of this pool are up')


@pytest.mark.parametrize(
    ('url', 'named'), [('redis://h/1', ['write ?db=1']), ('redis://h:x', [])]
)
def test_doubtful_url_is_named(url: str, named: list[str]) -> None:
    """The daemon runs with it; a URL that it refuses has another check."""
    CONF.set_override('backend_url', url, group='coordination')
    warnings = list(status._find_warnings())
    for part, warning in zip(named, warnings, strict=True):
        assert part in warning


def test_backend_of_one_machine_is_named(tmp_path: pathlib.Path) -> None:
    """Without backend_url each controller would be a pool of its own."""
    url = f'file://{tmp_path}'
    CONF.set_override('backend_url', url, group='coordination')
    result = Checks()._check_coordination()
    assert result.code == upgradecheck.Code.SUCCESS
    assert 'name another backend' in result.details


def test_folder_is_checked_although_ironic_has_no_credentials(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a first start both are often missing; one run names both."""
    CONF.set_override('state_path', str(tmp_path), group='ironic_compute')
    monkeypatch.setattr('os.access', lambda *_: False)
    result = Checks()._check_controller()
    assert result.code == upgradecheck.Code.FAILURE
    assert 'cannot be written' in result.details
    assert 'has no credentials' in result.details


def test_daemon_with_another_lease_term_is_warned_of(
    tmp_path: pathlib.Path,
) -> None:
    """Its name and its term are shown."""
    url = f'file://{tmp_path}'
    CONF.set_override('backend_url', url, group='coordination')
    CONF.set_override('lease_term_s', 15, group='coordination')
    pool = group_name(CONF.ironic.conductor_group, CONF.ironic.shard)
    for home, term_s in (('c2', 15.0), ('c3', 40.0)):
        me = Member(Host(home), new_boot(), lease_term_s=term_s)
        daemon = Membership(url, pool, me.home, me.boot, term_s=term_s)
        daemon.connect()
        daemon.join(me)
    result = Checks()._check_coordination()
    assert result.code == upgradecheck.Code.WARNING
    assert 'is 15 here, but c3 40 s;' in result.details


def test_placement_is_not_probed_unless_told_to() -> None:
    """The check says what it does not know; a request would need Keystone."""
    result = Checks()._check_allocations()
    assert result.code == upgradecheck.Code.SUCCESS
    assert '--probe-placement' in result.details


def test_what_it_costs_not_to_listen_is_said() -> None:
    """An operator may want it so, and RabbitMQ is not asked."""
    CONF.set_override('use_notifications', False, group='ironic_compute')
    result = Checks()._check_notifications()
    assert result.code == upgradecheck.Code.SUCCESS
    assert 'seen up to 10 s later' in result.details
