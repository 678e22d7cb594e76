# SPDX-License-Identifier: Apache-2.0
"""What a fork server loads depends on no option and is nearly everything."""

import ast
import subprocess
import sys

# Every worker imports `process` before it reads nova.conf; a fork server
# imports what `preloading` names, too. Which options does the latter read?
_PROGRAM = """
import sys, threading
from oslo_config import cfg
from oslo_utils import importutils
from ironic_compute import compat
compat.patch_concurrency()
from ironic_compute.worker import process
read = set()
read_option = cfg.ConfigOpts._get
def note(self, name, group=None, namespace=None):
    if group is not None:
        read.add((group.name, name))
    elif name not in self._groups:
        read.add(('DEFAULT', name))
    return read_option(self, name, group, namespace)
cfg.ConfigOpts._get = note
from ironic_compute.worker import preloading
preloading.load()
threads = threading.active_count()
cfg.ConfigOpts._get = read_option
process.configure(['--config-file', '/dev/null'])
loaded = set(sys.modules)
importutils.import_class(process.MANAGER)
print(repr((read, sorted(set(sys.modules) - loaded), threads)))
"""

# The plug-in of quotas registers its options once more before it logs in, and
# a worker asks for no quota. Profiling is not for production.
_READ = {
    ('oslo_limit', 'auth_section'),
    ('oslo_limit', 'auth_type'),
    ('profiler', 'enabled'),
}


def test_fork_server_reads_no_option_and_leaves_the_manager() -> None:
    """A worker has the values of its nova.conf, and loads almost nothing.

    What reads an option while it is imported would keep the default.
    """
    found = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
    )
    read, late, threads = ast.literal_eval(found.stdout.splitlines()[-1])
    assert read <= _READ
    assert threads == 1
    managers = ('ironic_compute.manager', 'nova.compute.manager')
    assert set(managers) <= set(late)
    others = [name for name in late if not name.startswith(managers)]
    assert len(others) < 10, others
