# SPDX-License-Identifier: Apache-2.0
"""The hooks that end a worker at the n-th request of a build."""

import json
import pathlib
import runpy
import subprocess
import sys

import pytest
from onemachine.chaos import cuts

HOOKS = cuts._HOOKS / 'sitecustomize.py'
SERVICES = {'6385': 'ironic', '9696': 'neutron', '5000': 'keystone'}
UUID = '0a1b2c3d-0000-4000-8000-000000000001'


@pytest.fixture(scope='module')
def hooks():
    """Return the names of the module with the hooks, without any effect."""
    return runpy.run_path(str(HOOKS))


@pytest.mark.parametrize(
    ('method', 'url', 'name'),
    [
        (
            'PATCH',
            f'http://h:6385/v1/nodes/{UUID}',
            'ironic PATCH /v1/nodes/ID',
        ),
        ('POST', 'http://h:9696/v2.0/ports', 'neutron POST /v2.0/ports'),
        ('GET', 'http://h:9696/v2.0/ports', None),
        ('POST', 'http://h:5000/v3/auth/tokens', None),
        ('PUT', 'http://h:1234/v1/x', None),
    ],
)
def test_requests_that_change_something_are_counted(hooks, method, url, name):
    """A read and the request of a token are no points of a build."""
    assert hooks['http_name'](method, url, SERVICES) == name


@pytest.mark.parametrize(
    ('method', 'arguments', 'name'),
    [
        (
            'object_action',
            {'objname': 'Instance', 'objmethod': 'save'},
            'conductor Instance.save',
        ),
        ('object_action', {'objname': 'Service', 'objmethod': 'save'}, None),
        (
            'object_class_action_versions',
            {'objname': 'Instance', 'objmethod': 'get_by_uuid'},
            None,
        ),
        ('build_instances', {}, 'RPC build_instances'),
    ],
)
def test_rpcs_that_change_something_are_counted(
    hooks, method, arguments, name
):
    """A heartbeat and a read of a record are no points of a build."""
    assert hooks['rpc_name'](method, arguments) == name


PROGRAM = """
import pathlib, runpy, sys
hooks = runpy.run_path(sys.argv[1])
cut = hooks['Cut'](pathlib.Path(sys.argv[2]))
order = pathlib.Path(sys.argv[2])
given = order.read_text()
order.write_text(given.replace('b2', 'b1'))
cut.begin()
cut.around('of the former build', lambda: None)
order.write_text(given)
cut.around('too early', lambda: None)
cut.begin()
for number in (1, 2, 3):
    cut.around(f'request {number}', lambda: print(number, flush=True))
"""


@pytest.mark.parametrize(
    ('side', 'sent'), [('before', ['1']), ('after', ['1', '2'])]
)
def test_process_ends_before_or_after_its_request(
    tmp_path: pathlib.Path, side, sent
):
    """The second request of a build is the last one, sent or not."""
    order = tmp_path / 'c1.order'
    order.write_text(json.dumps({'number': 2, 'side': side, 'build': 'b2'}))
    done = subprocess.run(
        [sys.executable, '-c', PROGRAM, str(HOOKS), str(order)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == -9
    assert done.stdout.split() == sent
    assert (tmp_path / 'c1.fired').read_text() == 'request 2'
    assert not order.exists()
