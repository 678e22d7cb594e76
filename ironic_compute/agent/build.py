# SPDX-License-Identifier: Apache-2.0
"""Composition root of the agent: creates its objects from nova.conf.

``cmd/agent.py`` calls ``build_agent`` once, in the main thread. The agent's
loop also runs in that thread, because the kernel kills a worker when the
thread that started it ends.
"""

import functools
import os
from collections.abc import Sequence
from typing import Any

from oslo_log import log as logging

from hashring import opts as hashring_opts
from hashring.agent import Agent
from hashring.clock import SystemClock
from hashring.membership import Membership, new_boot
from hashring.ring import Host
from hashring.state_dir import StateDir
from ironic_compute.agent.groups import find_overlap, group_name
from ironic_compute.agent.signals import AgentSignals
from ironic_compute.agent.systemd import Watchdog
from ironic_compute.agent.worker_processes import WorkerProcesses

LOG = logging.getLogger(__name__)


def build_agent(
    conf: Any, prog: str, worker_command: Sequence[str]
) -> tuple[Agent, AgentSignals]:
    """Return the agent that nova.conf describes, not running yet.

    Its signals are not handled yet, either.

    :param prog: the name of the agent's reports
    :param worker_command: command line of a worker, without
        ``--agent-pid`` and ``--report-fd``
    :raises hashring.errors.ConfigError: the configuration is wrong
    """
    hashring_opts.check_options(
        conf,
        service_down_time_s=conf.service_down_time,
        report_interval_s=conf.report_interval,
    )
    home, boot = Host(conf.host), new_boot()
    timing = hashring_opts.Timing.from_conf(
        conf, settle_s=conf.ironic_compute.settle_s
    )
    group = group_name(conf.ironic.conductor_group, conf.ironic.shard)
    state = StateDir(conf.ironic_compute.state_path, group)
    state.open()
    clock = SystemClock()
    membership = Membership(
        conf.coordination.backend_url,
        group,
        home,
        boot,
        term_s=timing.lease_term_s,
    )
    workers = WorkerProcesses(
        worker_command,
        home,
        clock,
        silence_s=conf.ironic_compute.worker_silence_s,
        start_s=conf.ironic_compute.worker_start_s,
        keeps_spare=conf.ironic_compute.spare_worker,
    )
    signals = AgentSignals(conf, prog, workers)
    watchdog = Watchdog(os.environ, clock)

    def on_turn() -> None:
        watchdog.notify_if_due()
        signals.act()

    agent = Agent(
        membership=membership,
        workers=workers,
        home=home,
        timing=timing,
        clock=clock,
        saved_state=state,
        find_overlap=functools.partial(find_overlap, group),
        on_turn=on_turn,
    )
    return agent, signals
