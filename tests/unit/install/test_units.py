# SPDX-License-Identifier: Apache-2.0
"""The units of systemd: of the package, for several pools, and for OSA."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from hashring.opts import Timing
from tests.unit.install.files import (
    CONTRIB,
    ROOT,
    Ini,
    parse_ini,
    read_ini,
    read_yaml,
    render,
)

UNIT = ROOT / 'etc' / 'systemd' / 'ironic-compute.service'
POOLS = CONTRIB / 'systemd' / 'ironic-compute@.service'
VENV = CONTRIB / 'systemd' / 'venv.conf'
_ANALYZE = shutil.which('systemd-analyze')


def _osa_unit() -> str:
    """Return the unit of OpenStack-Ansible with the overrides of the guide.

    ansible-role-systemd_service makes the unit; its template has these keys.
    """
    path = CONTRIB / 'openstack-ansible' / 'group_vars' / 'ironic_compute.yml'
    overrides = read_yaml(path)['nova_compute_init_overrides']
    unit: Ini = {
        'Unit': {'Description': 'nova-compute service'},
        'Service': {
            'Type': 'simple',
            'User': 'nova',
            'ExecStart': '/openstack/venvs/nova-1/bin/nova-compute',
            'ExecReload': '/bin/kill -HUP $MAINPID',
            'TimeoutSec': '120',
        },
        'Install': {'WantedBy': 'multi-user.target'},
    }
    for section, values in overrides.items():
        unit[section] |= {key: str(value) for key, value in values.items()}
    lines = [
        f'[{section}]\n' + '\n'.join(f'{k}={v}' for k, v in values.items())
        for section, values in unit.items()
    ]
    bin_folder = '/openstack/venvs/nova-1/bin'
    return render('\n\n'.join(lines), nova_bin=bin_folder) + '\n'


def _units() -> dict[str, str]:
    return {
        'ironic-compute.service': UNIT.read_text(),
        'ironic-compute@rack1.service': POOLS.read_text(),
        'nova-compute.service': _osa_unit(),
    }


@pytest.mark.skipif(_ANALYZE is None, reason='systemd-analyze is missing')
@pytest.mark.parametrize('name', _units())
def test_systemd_finds_no_fault(name: str, tmp_path: pathlib.Path) -> None:
    """systemd-analyze verify prints nothing and exits with 0."""
    program = f'{sys.prefix}/bin/ironic-compute'
    text = _units()[name]
    for start in ('', '/openstack/venvs/nova-1/bin/'):
        given = f'ExecStart={start}ironic-compute'
        text = text.replace(given, f'ExecStart={program}')
    (tmp_path / name).write_text(text)
    done = subprocess.run(
        [str(_ANALYZE), 'verify', str(tmp_path / name)],
        capture_output=True,
        text=True,
    )
    ours = [line for line in done.stderr.splitlines() if 'compute' in line]
    assert (done.returncode, ours) == (0, [])
    assert program in text


@pytest.mark.skipif(_ANALYZE is None, reason='systemd-analyze is missing')
def test_systemd_takes_the_one_command_of_the_drop_in(
    tmp_path: pathlib.Path,
) -> None:
    """A service that is not of type oneshot may have one command only."""
    unit = tmp_path / 'ironic-compute.service'
    unit.write_text(UNIT.read_text())
    folder = tmp_path / 'ironic-compute.service.d'
    folder.mkdir()
    program = f'{sys.prefix}/bin/ironic-compute'
    text = VENV.read_text()
    path = '/opt/ironic-compute/bin/ironic-compute'
    assert text.count(path) == 1
    (folder / 'venv.conf').write_text(text.replace(path, program))
    done = subprocess.run(
        [str(_ANALYZE), 'verify', str(unit)],
        capture_output=True,
        text=True,
        env={**os.environ, 'SYSTEMD_UNIT_PATH': f'{tmp_path}:'},
    )
    ours = [line for line in done.stderr.splitlines() if 'compute' in line]
    assert (done.returncode, ours) == (0, [])


def test_unit_for_pools_differs_by_the_pool_only() -> None:
    """What holds for the unit of the package holds for each pool's."""
    one, pools = read_ini(UNIT), read_ini(POOLS)
    differ = {
        key
        for section in one
        for key in one[section].keys() | pools[section].keys()
        if one[section].get(key) != pools[section].get(key)
    }
    assert differ == {'Description', 'ExecStart', 'StateDirectory'}
    assert pools['Service']['StateDirectory'].endswith('/%i')


@pytest.mark.parametrize('name', _units())
def test_daemon_has_time_to_stop(name: str) -> None:
    """systemd waits half a minute longer than a worker may drain."""
    service = parse_ini(_units()[name])['Service']
    stop_s = float(service['TimeoutStopSec'])
    assert stop_s >= Timing().drain_timeout_s + 30
    assert service['Type'] == 'notify'
    assert service['KillMode'] == 'mixed'
    assert service['RestartPreventExitStatus'] == '78'
    # systemd would stop all workers when the kernel kills one of them.
    assert service['OOMPolicy'] == 'continue'


def test_osa_starts_the_daemon_and_not_nova_compute() -> None:
    """The override replaces the one command of the role's unit."""
    service = parse_ini(_osa_unit())['Service']
    path = '/openstack/venvs/nova-1/bin/ironic-compute'
    assert service['ExecStart'] == path
