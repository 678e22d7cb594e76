# SPDX-License-Identifier: Apache-2.0
"""The worker does what the operator has told the agent, once each."""

import os
import pathlib
from collections.abc import Iterator

import nova.conf
import pytest
from oslo_config import cfg, fixture

from hashring.clock import SystemClock
from hashring.ring import Host
from hashring.workers import WorkerView
from ironic_compute import instructions
from ironic_compute.agent import pipe
from ironic_compute.gate import LeaseGate
from ironic_compute.pool.view import PoolView
from ironic_compute.worker.agent_pipe import AgentPipe
from ironic_compute.worker.components import Tenure

CONF = nova.conf.CONF
VIEW = WorkerView(deadline_s=1.0, ring=(), agreed_since_s=None, known=())


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder with nova.conf, in which reports are written."""
    file = tmp_path / 'nova.conf'
    file.write_text('')
    instructions.report_opts.set_defaults(CONF)
    with fixture.Config(CONF) as changed:
        changed.register_opt(cfg.StrOpt('colour', mutable=True))
        changed.set_config_files([str(file)])
        changed.config(group='oslo_reports', log_dir=str(tmp_path))
        yield tmp_path


class _Wire:
    """The worker's end of the pipes, and a way to send it views."""

    def __init__(self) -> None:
        down_fd, self._agent_fd = os.pipe()
        self._up_fd, report_fd = os.pipe()
        clock = SystemClock()
        gate = LeaseGate(clock, clock.now_s())
        tenure = Tenure(Host('c1'), True, gate, PoolView(clock), clock)
        down = pipe.LineReader(down_fd)
        self._agent_pipe = AgentPipe(tenure, report_fd, down, 60.0)

    def send(self, **counts: int) -> None:
        """Send a view with the operator's instructions to the worker."""
        line = pipe.encode_view(VIEW, pipe.Instructions(**counts))
        self._agent_pipe._receive(line)


@pytest.mark.parametrize('is_first', [True, False])
def test_reload_is_done_once_also_by_a_former_spare(
    is_first: bool, folder: pathlib.Path
) -> None:
    """A spare has read its configuration before the first view."""
    wire = _Wire()
    assert CONF.colour is None
    if not is_first:
        wire.send()
    folder.joinpath('nova.conf').write_text('[DEFAULT]\ncolour = red\n')
    wire.send(reloads=1)
    assert CONF.colour == 'red'
    folder.joinpath('nova.conf').write_text('[DEFAULT]\ncolour = blue\n')
    wire.send(reloads=1)
    assert CONF.colour == 'red'


def test_report_is_written_once_and_not_at_the_start(
    folder: pathlib.Path,
) -> None:
    """What was asked before the worker began was not asked of it."""
    wire = _Wire()
    names = 'ironic-compute-worker-c1_gurumeditation_*'
    wire.send(reports=3)
    assert not list(folder.glob(names))
    wire.send(reports=4)
    wire.send(reports=4)
    (report,) = folder.glob(names)
    assert 'test_report_is_written_once' in report.read_text()
