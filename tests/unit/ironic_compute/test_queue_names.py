# SPDX-License-Identifier: Apache-2.0
"""Two processes of a machine never share a queue for their answers."""

import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

_PROGRAM = """
import sys
import oslo_messaging
from oslo_config import cfg
from ironic_compute import queue_names

cfg.CONF([], default_config_files=[sys.argv[1]])
queue_names.use_random_names(cfg.CONF)
transport = oslo_messaging.get_rpc_transport(cfg.CONF, 'rabbit://127.0.0.1/')
print(transport._driver._get_reply_queue_name(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def nova_conf(tmp_path: pathlib.Path) -> str:
    """A nova.conf with the settings of Kolla Ansible."""
    path = tmp_path / 'nova.conf'
    path.write_text(
        f'[oslo_concurrency]\nlock_path = {tmp_path}\n'
        '[oslo_messaging_rabbit]\nuse_queue_manager = true\n'
        f'hostname = test-{os.getpid()}\nprocessname = worker\n'
    )
    return str(path)


@contextlib.contextmanager
def _worker(nova_conf: str) -> Iterator[str]:
    """Run a process group of its own; yield the queue of its answers."""
    with subprocess.Popen(
        [sys.executable, '-c', _PROGRAM, nova_conf],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def test_workers_of_a_machine_have_queues_of_their_own(nova_conf: str) -> None:
    """For each process group oslo.messaging would count anew."""
    with _worker(nova_conf) as one, _worker(nova_conf) as other:
        assert one.startswith('reply_') and other.startswith('reply_')
        assert one != other
