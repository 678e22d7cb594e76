# SPDX-License-Identifier: Apache-2.0
"""The files an operator starts from are what the code says."""

import configparser
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = ROOT / 'etc' / 'ironic-compute' / 'ironic-compute.conf.sample'


def _words(text):
    """All of a sample but how its lines are broken, which releases change."""
    return text.replace('#', ' ').split()


def test_sample_is_fresh(tmp_path):
    """The sample is what tox -e genconfig makes."""
    fresh = tmp_path / 'sample'
    subprocess.run(
        [
            f'{sys.prefix}/bin/oslo-config-generator',
            '--config-file',
            f'{ROOT}/etc/ironic-compute-config-generator.conf',
            '--output-file',
            str(fresh),
        ],
        check=True,
        capture_output=True,
    )
    assert _words(fresh.read_text()) == _words(SAMPLE.read_text())


def test_unit_never_restarts_a_wrong_configuration():
    """Exit status 78 ends it; anything else is tried again."""
    unit = configparser.RawConfigParser(strict=False)
    unit.read(ROOT / 'etc' / 'systemd' / 'ironic-compute.service')
    service = unit['Service']
    assert service['RestartPreventExitStatus'] == '78'
    assert service['KillMode'] == 'mixed'
    assert service['ExecStart'].startswith('/usr/bin/ironic-compute ')
