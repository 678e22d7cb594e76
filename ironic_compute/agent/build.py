# SPDX-License-Identifier: Apache-2.0
"""Composition root of the agent: creates its objects from nova.conf.

``cmd/agent.py`` calls ``build_agent`` once, in the main thread. The agent's
loop also runs in that thread, because the kernel kills a worker when the
thread that started it ends.
"""

import dataclasses
import functools
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from oslo_log import log as logging

from hashring import opts as hashring_opts
from hashring.agent import Agent
from hashring.agent_status import AgentStatus
from hashring.clock import Clock, SystemClock
from hashring.counts import HostMove
from hashring.events import Why
from hashring.membership import Membership, new_boot
from hashring.option_warnings import find_warnings
from hashring.ring import Host
from hashring.state_dir import StateDir
from ironic_compute.agent.groups import (
    POOL_OPTIONS,
    find_overlap,
    group_name,
)
from ironic_compute.agent.signals import AgentSignals
from ironic_compute.agent.start_process import StartedForkServer
from ironic_compute.agent.successor import (
    Predecessor,
    Successor,
    find_obstacle,
)
from ironic_compute.agent.systemd import Watchdog
from ironic_compute.agent.worker_processes import WorkerProcesses
from ironic_compute.agent_port.agent_metrics import BackendMetrics
from ironic_compute.agent_port.application import Application, Snapshot
from ironic_compute.agent_port.neighbor_watch import NeighborThread
from ironic_compute.agent_port.peers import published_url
from ironic_compute.agent_port.server import BoundedServer, PortThread
from ironic_compute.instructions import version
from ironic_compute.journal import move_file
from ironic_compute.journal.moves import Cause, Kind, MoveRecorder, Reason

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Commands:
    """Command lines of the processes that an agent starts.

    :ivar worker: without ``--agent-pid`` and ``--report-fd``
    :ivar agent: of the next daemon of this controller
    """

    worker: Sequence[str]
    agent: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Daemon:
    """The agent and what belongs to its process."""

    agent: Agent
    signals: AgentSignals
    successor: Successor
    watchdog: Watchdog

    def on_turn(self) -> None:
        """Do what is due after each turn of the agent's loop."""
        self.watchdog.notify_if_due()
        self.signals.act()
        leaving = self.agent.assignment.leaving
        if leaving is not None and not leaving.restarting:
            # An operator retires the host; this daemon may yet be killed.
            self.successor.renounce()
        if self.successor.check() and leaving is None:
            self.agent.request_stop()


def build_agent(
    conf: Any,
    prog: str,
    commands: Commands,
    fork_server: StartedForkServer | None = None,
    predecessor: Predecessor | None = None,
) -> Daemon:
    """Return the agent that nova.conf describes, not running yet.

    Its signals are not handled yet, either. Its port is open already, if it
    has one, and says that the loop has not turned.

    :param prog: the name of the agent's reports
    :param fork_server: the agent's fork server, if it was started before
    :param predecessor: the daemon that runs; returns after its end
    :raises hashring.errors.ConfigError: the configuration is wrong
    """
    hashring_opts.check_options(
        conf,
        service_down_time_s=conf.service_down_time,
        report_interval_s=conf.report_interval,
    )
    home = Host(conf.host)
    timing = hashring_opts.Timing.from_conf(
        conf, settle_s=conf.ironic_compute.settle_s
    )
    group = group_name(conf.ironic.conductor_group, conf.ironic.shard)
    state = StateDir(conf.ironic_compute.state_path, group)
    clock = SystemClock()
    backend = BackendMetrics(clock)
    membership = _make_membership(conf, group, timing, backend)
    _log_warnings(conf)
    workers = _make_workers(conf, commands.worker, clock, fork_server)
    if predecessor is not None:
        state.check()  # While the other daemon can still serve on.
        predecessor.wait_for_end(workers)
    state.open()
    limit_s = conf.ironic_compute.worker_start_s
    obstacle = find_obstacle()
    successor = Successor(commands.agent, clock, limit_s, obstacle)
    signals = AgentSignals(conf, prog, workers, successor)
    watchdog = Watchdog(os.environ, clock)
    agent = Agent(
        membership=membership,
        workers=workers,
        home=home,
        timing=timing,
        clock=clock,
        saved_state=state,
        version=version(),
        page=_page_url(conf),
        find_overlap=functools.partial(find_overlap, group),
        on_turn=lambda: daemon.on_turn(),
        on_status=_open_port(conf, workers, backend, clock),
        on_host_move=_open_journal(conf, home, clock),
    )
    daemon = Daemon(agent, signals, successor, watchdog)
    return daemon


def _log_warnings(conf: Any) -> None:
    for reason in find_warnings(conf):
        LOG.warning(
            'nova.conf should be corrected: %(reason)s', {'reason': reason}
        )


def _make_membership(
    conf: Any, group: str, timing: hashring_opts.Timing, meter: BackendMetrics
) -> Membership:
    return Membership(
        conf.coordination.backend_url,
        group,
        Host(conf.host),
        new_boot(),
        term_s=timing.lease_term_s,
        meter=meter,
    )


def _make_workers(
    conf: Any,
    command: Sequence[str],
    clock: Clock,
    fork_server: StartedForkServer | None,
) -> WorkerProcesses:
    options = conf.ironic_compute
    if fork_server is not None and not options.fork_workers:
        fork_server.kill()
        fork_server = None
    return WorkerProcesses(
        command,
        Host(conf.host),
        clock,
        silence_s=options.worker_silence_s,
        start_s=options.worker_start_s,
        keeps_spare=options.spare_worker,
        forks=options.fork_workers,
        has_metrics=bool(options.agent_port),
        pool={name: conf.ironic[name] for name in POOL_OPTIONS},
        fork_server=fork_server,
    )


# What the agent's events are called in the journal, and who has the host then.
_HOST_MOVES = {
    Why.ADOPTED: (Kind.ADOPTION, Reason.DAEMON_GONE),
    Why.HAND_BACK: (Kind.HAND_BACK, Reason.DAEMON_BACK),
    Why.HALF_ALIVE: (Kind.HAND_BACK, Reason.HALF_ALIVE),
}


def _open_journal(
    conf: Any, home: Host, clock: Clock
) -> Callable[[HostMove], None]:
    """Return what writes the moves of hosts to the agent's journal."""
    file = move_file.MoveFile(
        move_file.agent_path(conf.ironic_compute.state_path)
    )
    file.start()
    moves = MoveRecorder(clock, file.add)

    def note(move: HostMove) -> None:
        kind, reason = _HOST_MOVES[move.why]
        is_ours_now = kind is Kind.ADOPTION
        other = '' if move.why is Why.HALF_ALIVE else str(move.host)
        moves.add(
            kind,
            Cause(reason),
            begun_s=moves.now_s() - move.seconds,
            source=other if is_ours_now else home,
            target=home if is_ours_now else other,
            host=move.host,
        )

    return note


def _page_url(conf: Any) -> str:
    options = conf.ironic_compute
    if not options.agent_port:
        return ''
    return published_url(
        options.agent_address, options.agent_port, socket.gethostname()
    )


def _open_port(
    conf: Any,
    workers: WorkerProcesses,
    backend: BackendMetrics,
    clock: Clock,
) -> Callable[[AgentStatus], None] | None:
    """Open the agent's port; return what the loop calls after each turn.

    :returns: None if nova.conf wants no port
    """
    address = conf.ironic_compute.agent_address
    port = conf.ironic_compute.agent_port
    if not port:
        return None
    folder = move_file.journal_folder(conf.ironic_compute.state_path)
    application = Application(
        clock, backend, functools.partial(move_file.read_moves, folder)
    )

    def make_server() -> BoundedServer:
        return BoundedServer(address, port, application, clock)

    PortThread(make_server, address, port, clock).start()
    NeighborThread(application.newest_status, clock).start()
    return lambda status: application.publish(
        Snapshot(status, workers.metrics_channels())
    )
