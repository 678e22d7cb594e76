# SPDX-License-Identifier: Apache-2.0
"""The worker process: a nova-compute for one host, in one tenure.

Crash-only: the way it starts is the way it recovers. It ends itself when its
agent is gone or says nothing any more. While its lease has lapsed a request
that changes something waits at the gate.
"""

import argparse
import functools
import gc
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import nova.conf
import nova.db.main.api
import setproctitle
from nova import config as nova_config
from nova import objects
from nova import utils as nova_utils
from nova.objects import base as objects_base
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import importutils

from hashring.clock import SystemClock
from hashring.ring import Host
from hashring.workers import ServiceFacts
from ironic_compute import compat, errors
from ironic_compute.agent import exit_codes, pipe
from ironic_compute.config import default_config_files, register_opts
from ironic_compute.gate import LeaseGate
from ironic_compute.pool.services import BINARY
from ironic_compute.pool.view import PoolView, update_pool_and_gate
from ironic_compute.worker import (
    executors,
    gated_writes,
    rpc_gating,
    rpc_service,
)
from ironic_compute.worker.components import Components, Tenure

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

PROG = 'ironic-compute-worker'
# A string: importing it freezes the intervals of Nova's periodic tasks.
MANAGER = 'ironic_compute.manager.compute_manager.IronicComputeManager'

_ALIVE_INTERVAL_S = 5.0
# A thread that computes keeps the interpreter so long before one that has an
# answer gets its turn; a claim has fifteen such moments, and Python's 5 ms
# were most of what it took while a list of all nodes was read. Each thread
# that waits for its turn wakes as often: with a hundred of them a tenth of
# this took six times the work from all.
_TURN_S = 0.001

# What suits a worker better than Nova's defaults; an operator's value wins.
_DEFAULTS = (
    # Tested by Nova itself to tell bare metal from hypervisors.
    (None, 'compute_driver', 'ironic.IronicDriver'),
    # A build is a thread that waits for Ironic; ten at once is no limit
    # that bare metal knows.
    (None, 'max_concurrent_builds', executors.AMPLE_COUNT),
    # Nova starts a thread for each server until it has all of them (1000),
    # and a look at a server's power is an answer of nova-conductor.
    (None, 'sync_power_state_pool_size', 10),
    (None, 'graceful_shutdown_timeout', 60),
    (None, 'manager_shutdown_timeout', 45),
)


class AgentLine:
    """The worker's ends of the two pipes; one thread listens.

    :param report_fd: where the agent hears us
    :param down: where we hear the agent
    :param give_up_s: of an agent that says nothing, and does not end
    """

    def __init__(
        self,
        tenure: Tenure,
        report_fd: int,
        down: pipe.LineReader,
        give_up_s: float,
    ) -> None:
        os.set_inheritable(report_fd, False)
        self._tenure = tenure
        self._give_up_s = give_up_s
        self._heard_s = tenure.clock.now_s()
        self._up = pipe.NewestLineWriter(report_fd)
        self._down = down
        self._sending = threading.Lock()

    def say(self, message: pipe.Message) -> None:
        """Tell the agent something; lost if it does not listen."""
        with self._sending:
            self._up.write(pipe.encode_message(message))

    def say_services(self, facts: dict[Host, ServiceFacts]) -> None:
        """Tell the agent what Nova says of the hosts of the pool."""
        self.say(pipe.Services(facts))

    def start(self) -> None:
        """Listen to the agent from now on."""
        threading.Thread(
            target=self._listen, name='agent', daemon=True
        ).start()

    def _listen(self) -> None:
        said_s = 0.0
        while True:
            try:
                for line in self._down.lines(_ALIVE_INTERVAL_S):
                    self._heed(line)
            except EOFError:
                LOG.error('The agent is gone; this worker ends')
                os._exit(exit_codes.EX_AGENT_GONE)
            # Not an answer to each view: the agent would answer in turn.
            if self._tenure.clock.now_s() - said_s >= _ALIVE_INTERVAL_S:
                said_s = self._tenure.clock.now_s()
                self.say(pipe.IsAlive())
            # Not because the lease has lapsed: while the backend is away
            # somebody has to tell Nova that the host is up, or nova-api
            # deletes servers by itself.
            if self._tenure.clock.now_s() - self._heard_s > self._give_up_s:
                LOG.error('The agent says nothing; this worker ends')
                os._exit(exit_codes.EX_AGENT_SILENT)

    def _heed(self, line: bytes) -> None:
        self._heard_s = self._tenure.clock.now_s()
        view = pipe.decode_view(line)
        ties = self._tenure
        update_pool_and_gate(view, ties.host, ties.pool, ties.gate, ties.clock)


def run(ties: argparse.Namespace, config_arguments: Sequence[str]) -> int:
    """Serve the host that the agent names, until told to stop.

    All that needs no host is done before the agent is asked for one.
    """
    try:
        _configure(config_arguments)
    except cfg.Error as exc:
        return exit_codes.print_config_error(exc)
    importutils.import_class(MANAGER)
    down = pipe.LineReader(sys.stdin.fileno())
    setproctitle.setproctitle(f'{PROG}: spare')
    try:
        tenure = _accept(pipe.decode_appointment(down.next_line()))
    except EOFError:
        return exit_codes.EX_AGENT_GONE
    return _serve(tenure, ties.report_fd, down)


def _accept(appointment: pipe.Appointment) -> Tenure:
    setproctitle.setproctitle(f'{PROG}: host {appointment.host}')
    CONF.set_override('host', appointment.host)
    clock = SystemClock()
    return Tenure(
        host=appointment.host,
        is_home=appointment.is_home,
        gate=LeaseGate(clock, clock.now_s()),
        pool=PoolView(clock),
        clock=clock,
    )


def _serve(tenure: Tenure, report_fd: int, down: pipe.LineReader) -> int:
    sys.setswitchinterval(_TURN_S)
    silence_s = CONF.ironic_compute.worker_silence_s
    line = AgentLine(tenure, report_fd, down, give_up_s=silence_s)
    line.start()
    executors.warn_of_low_limits(CONF)
    try:
        compat.run_service(_service(tenure, line))
    except errors.ConfigError as exc:
        line.say(pipe.CannotStart(str(exc)))
        return exit_codes.EX_CONFIG
    return 0


def _refuse(line: AgentLine, exc: errors.ConfigError) -> NoReturn:
    """End a worker that serves already, and found that it cannot."""
    LOG.error('This worker ends: %(error)s', {'error': exc})
    line.say(pipe.CannotStart(str(exc)))
    os._exit(exit_codes.EX_CONFIG)


def _configure(config_arguments: Sequence[str]) -> None:
    register_opts(CONF)
    rpc_gating.set_defaults(CONF)
    for group, name, value in _DEFAULTS:
        compat.set_default(CONF, name, value, group)
    nova_config.parse_args(
        [PROG, *config_arguments],
        default_config_files=default_config_files(),
        configure_db=False,
        prog=PROG,
    )
    logging.setup(CONF, PROG)
    objects.register_all()
    nova.db.main.api.DISABLE_DB_ACCESS = True
    objects.Service.enable_min_version_cache()


def _service(tenure: Tenure, line: AgentLine) -> Any:
    conductor = gated_writes.GatedConductor(tenure.gate)
    objects_base.NovaObject.indirection_api = conductor
    if nova_utils.concurrency_mode_threading():
        compat.set_build_executor(executors.make_build_executor(CONF))
    components = Components(tenure)
    components.on_services = line.say_services
    components.on_order = line.say
    components.on_refused = functools.partial(_refuse, line)
    server = rpc_service.Service(
        tenure.host,
        BINARY,
        manager=MANAGER,
        report_interval=CONF.report_interval,
        periodic_enable=CONF.periodic_enable,
        periodic_fuzzy_delay=CONF.periodic_fuzzy_delay,
        components=components,
        **compat.service_arguments(),
    )
    watch = rpc_gating.RpcGating(server.rpc_servers, tenure.gate)

    def serve() -> None:
        # Modules, and the records of what we hold, stay; to look through
        # them again and again would stop all threads each time. What is
        # garbage already would stay, too.
        gc.collect()
        gc.freeze()
        watch.start()
        line.say(pipe.IsServing())

    components.on_serving, components.on_left = (
        serve,
        functools.partial(_leave, server),
    )
    components.on_stopping = server.on_stopping = watch.stop
    nova_utils.raise_if_old_compute()
    return server


def _leave(server: rpc_service.Service) -> NoReturn:
    """End now: Nova's own way out waits for all threads, a minute or so."""
    server.stop_receiving()
    os._exit(0)
