# SPDX-License-Identifier: Apache-2.0
"""The log of RPCs of a process with ``rpc_log`` on its path."""

import os
import pathlib
import subprocess
import sys

from benchmarks import rpc_log

# A client of oslo.messaging's own broker in memory, whose server is a thread
# beside it.
PROGRAM = """
import logging, threading
logging.basicConfig(level=logging.DEBUG, format='%(name)s %(message)s')
import oslo_messaging
from oslo_config import cfg

class Conductor:
    target = oslo_messaging.Target(version='1.0')
    def answer(self, ctxt, what):
        if what == 'nothing':
            raise ValueError(what)
        return what

transport = oslo_messaging.get_rpc_transport(cfg.CONF, 'fake:')
target = oslo_messaging.Target(topic='conductor', server='a', version='1.0')
server = oslo_messaging.get_rpc_server(
    transport, target, [Conductor()], executor='threading'
)
server.start()
client = oslo_messaging.get_rpc_client(transport, target)
print(client.prepare(timeout=10).call({}, 'answer', what='this'))
try:
    client.call({}, 'answer', what='nothing')
except Exception as exc:
    print(type(exc).__name__)
client.cast({}, 'answer', what='this')
server.stop()
"""


def test_each_rpc_is_logged():
    """Begin and end of each call are logged, even if it fails.

    The results of the calls do not change.
    """
    folder = pathlib.Path(rpc_log.__path__[0])
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', PROGRAM],
        env={**os.environ, 'PYTHONPATH': str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ['this', 'ValueError']
    told = [
        line
        for line in done.stderr.splitlines()
        if line.startswith('benchmarks.rpc')
    ]
    both = [
        'benchmarks.rpc RPC begins: conductor answer',
        'benchmarks.rpc RPC ends: conductor answer',
    ]
    assert told == [*both, *both, 'benchmarks.rpc RPC cast: conductor answer']
