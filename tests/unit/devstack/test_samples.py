# SPDX-License-Identifier: Apache-2.0
"""The sample files of operators agree with the code."""

import configparser
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = ROOT / 'etc' / 'ironic-compute' / 'ironic-compute.conf.sample'


def _words(text):
    """Return the words of a sample, as releases break lines differently."""
    return text.replace('#', ' ').split()


def test_sample_is_fresh(tmp_path):
    """The sample is the output of tox -e genconfig."""
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
    """Exit status 78 is final; any other status leads to a restart."""
    unit = configparser.RawConfigParser(strict=False)
    unit.read(ROOT / 'etc' / 'systemd' / 'ironic-compute.service')
    service = unit['Service']
    assert service['RestartPreventExitStatus'] == '78'
    assert service['KillMode'] == 'mixed'
    assert service['ExecStart'].startswith('ironic-compute ')
