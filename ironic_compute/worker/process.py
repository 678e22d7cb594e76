# SPDX-License-Identifier: Apache-2.0
"""The worker process: Nova's compute service for one host, in one tenure.

The agent starts it (``cmd/worker.py``) and appoints it to a host through a
pipe. It is crash-only: recovery after a crash is the ordinary start. While
its lease has lapsed, each request that changes something waits at the lease
gate.
"""

import argparse
import gc
import os
import sys
from collections.abc import Callable, Sequence

import nova.conf
import nova.db.main.api
import setproctitle
from keystoneauth1 import exceptions as ksa_exc
from nova import config as nova_config
from nova import exception as nova_exception
from nova import objects
from nova import rpc as nova_rpc
from nova import utils as nova_utils
from nova.objects import base as objects_base
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import importutils

from hashring.clock import SystemClock
from hashring.workers import NO_HOST
from ironic_compute import (
    access_errors,
    compat,
    config,
    errors,
    queue_names,
)
from ironic_compute.agent import exit_codes, pipe
from ironic_compute.gate import LeaseGate
from ironic_compute.paths.path_health import NEUTRON, PathHealth
from ironic_compute.paths.repeated_requests import (
    TAKE_OVER_S,
    RepeatedRequests,
)
from ironic_compute.paths.traffic import ConductorTraffic, SessionTraffic
from ironic_compute.pool.services import BINARY
from ironic_compute.pool.view import PoolView
from ironic_compute.worker import (
    executors,
    gated_writes,
    path_worker,
    refused_requests,
    rpc_gating,
)
from ironic_compute.worker.agent_pipe import AgentPipe
from ironic_compute.worker.components import Components, Tenure, WorkerHooks
from ironic_compute.worker.rpc_service import Service

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

PROG = 'ironic-compute-worker'
# The manager's class is named by a string, because importing it freezes the
# intervals of Nova's periodic tasks.
MANAGER = 'ironic_compute.manager.compute_manager.IronicComputeManager'

# Python's switch interval: the seconds for which a computing thread keeps the
# interpreter while others wait. A build's claim waits about fifteen times, so
# Python's default of 5 ms was most of its duration while all nodes were
# listed. Each waiting thread wakes once per interval: with a hundred threads,
# 0.1 ms cost every thread six times the work.
_SWITCH_INTERVAL_S = 0.001

# Seconds after which a request to another service fails that has no answer.
# Nova sets no limit, and after a lost packet the thread of a build would wait
# for a quarter of an hour, or without an end if the service hangs. Before this
# limit, another daemon has got the host if this one is cut off
# (``paths.repeated_requests``), and Neutron has set up a slow switch.
_REQUEST_TIMEOUT_S = 120

# Seconds for which Nova lets a worker stop, and those of them in which it does
# not wait for tasks any more.
_DRAIN_S = 60
_AFTER_TASKS_S = 15

# Defaults of a worker in place of Nova's; a value in nova.conf overrides them.
_DEFAULTS = (
    # Nova compares this option with this name to distinguish bare metal from
    # hypervisors.
    (None, 'compute_driver', 'ironic.IronicDriver'),
    # A build is a thread that waits for Ironic, so Nova's limit of ten
    # builds at once has no reason on bare metal.
    (None, 'max_concurrent_builds', executors.AMPLE_COUNT),
    # For its power sync Nova would start a thread for each server, up to 1000.
    # Ten suffice, because syncing one server takes a single request to
    # nova-conductor.
    (None, 'sync_power_state_pool_size', 10),
    (None, 'graceful_shutdown_timeout', _DRAIN_S),
    (None, 'manager_shutdown_timeout', _DRAIN_S - _AFTER_TASKS_S),
    ('neutron', 'timeout', _REQUEST_TIMEOUT_S),
    ('cinder', 'timeout', _REQUEST_TIMEOUT_S),
    ('glance', 'timeout', _REQUEST_TIMEOUT_S),
    ('placement', 'timeout', _REQUEST_TIMEOUT_S),
)


def run(arguments: argparse.Namespace, config_arguments: Sequence[str]) -> int:
    """Serve the host that the agent names, until SIGTERM.

    Everything that does not depend on the host is done before the agent names
    the host, so that a spare worker takes over a host quickly.

    :param arguments: the command line arguments for the connection to the
        agent
    :returns: the exit status of the process
    """
    try:
        configure(config_arguments)
    except errors.ConfigError as exc:
        refusal = pipe.CannotStart(str(exc))
        os.write(arguments.report_fd, pipe.encode_message(refusal))
        return exit_codes.EX_CONFIG
    importutils.import_class(MANAGER)
    down = pipe.LineReader(sys.stdin.fileno())
    setproctitle.setproctitle(f'{PROG}: spare')
    try:
        tenure = make_tenure(pipe.decode_appointment(down.next_line()))
    except EOFError:
        return exit_codes.EX_AGENT_GONE
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    silence_s = CONF.ironic_compute.worker_silence_s
    agent_pipe = AgentPipe(tenure, arguments.report_fd, down, silence_s)
    agent_pipe.start()
    executors.warn_of_low_limits(CONF)
    return end_of(lambda: _serve(tenure, agent_pipe.send), agent_pipe.send)


def _serve(tenure: Tenure, send: Callable[[pipe.Message], None]) -> None:
    if tenure.host == NO_HOST:
        path_worker.run(tenure, send)
    else:
        compat.run_service(make_service(tenure, send))


def end_of(
    serve: Callable[[], None], send: Callable[[pipe.Message], None]
) -> int:
    """Serve until the end; return the exit status that says why it came.

    :param send: sends a message to the agent
    """
    try:
        serve()
    except errors.ConfigError as exc:
        send(pipe.CannotStart(str(exc)))
        return exit_codes.EX_CONFIG
    except ksa_exc.Unauthorized as exc:
        # The configuration need not be wrong: Keystone may refuse for a time.
        LOG.error(
            'This worker ends; Keystone refuses a user of nova.conf: '
            '%(error)s',
            {'error': exc},
        )
        return exit_codes.EX_KEYSTONE_REFUSED
    return 0


def configure(config_arguments: Sequence[str]) -> None:
    """Read nova.conf with a worker's defaults and prepare Nova's objects.

    :raises errors.ConfigError: the configuration is wrong
    """
    config.register_opts(CONF)
    rpc_gating.set_defaults(CONF)
    set_defaults(CONF)
    with (
        config.translated_errors(config_arguments),
        access_errors.translated_transport(),
    ):
        nova_config.parse_args(
            [PROG, *config_arguments],
            default_config_files=config.default_config_files(),
            configure_db=False,
            init_rpc=False,
            # The agent's name, so that both read the same folders of options.
            prog=config.PROG,
        )
        queue_names.use_random_names(CONF)
        nova_rpc.init(CONF)
        allow_long_drain(CONF)
    logging.setup(CONF, PROG)
    objects.register_all()
    nova.db.main.api.DISABLE_DB_ACCESS = True
    objects.Service.enable_min_version_cache()


def set_defaults(conf: cfg.ConfigOpts) -> None:
    """Set a worker's defaults of Nova's options, except those for RPC."""
    for group, name, value in _DEFAULTS:
        compat.set_default(conf, name, value, group)


def allow_long_drain(conf: cfg.ConfigOpts) -> None:
    """Let a worker that stops use all the time that its agent gives it.

    Values of Nova's options in nova.conf win. With a shorter time than Nova's
    the agent kills the worker, which then changes nothing. The worker stops to
    wait for tasks before Nova ends it.
    """
    drain_s = max(_DRAIN_S, int(conf.coordination.drain_timeout_s))
    compat.set_default(conf, 'graceful_shutdown_timeout', drain_s, None)
    # With 0, Nova never ends it.
    stop_s = min(drain_s, conf.graceful_shutdown_timeout or drain_s)
    tasks_s = max(0, stop_s - _AFTER_TASKS_S)
    compat.set_default(conf, 'manager_shutdown_timeout', tasks_s, None)


def make_tenure(appointment: pipe.Appointment) -> Tenure:
    """Return the tenure of an appointment; its gate is still shut."""
    if appointment.host == NO_HOST:
        setproctitle.setproctitle(f'{PROG}: paths')
    else:
        setproctitle.setproctitle(f'{PROG}: host {appointment.host}')
        CONF.set_override('host', appointment.host)
    # nova.conf may have changed since the agent has read it, and so may
    # conductor_group, which is mutable, at a reload.
    for name, value in (appointment.pool or {}).items():
        CONF.set_override(name, value, 'ironic')
    clock = SystemClock()
    return Tenure(
        host=appointment.host,
        is_home=appointment.is_home,
        gate=LeaseGate(clock, clock.now_s()),
        pool=PoolView(clock),
        clock=clock,
        metrics_fd=appointment.metrics_fd,
    )


def make_service(
    tenure: Tenure, send: Callable[[pipe.Message], None]
) -> Service:
    """Return Nova's service of a tenure, not started yet.

    :param send: delivers a message to the agent
    """
    path_health = PathHealth(tenure.clock)
    traffic = ConductorTraffic(path_health, tenure.clock)
    conductor = gated_writes.GatedConductor(tenure.gate, traffic, tenure.clock)
    objects_base.NovaObject.indirection_api = conductor
    neutron = SessionTraffic(NEUTRON, path_health, tenure.clock)
    repeats = RepeatedRequests(
        tenure.clock, CONF.coordination.half_alive_s + TAKE_OVER_S
    )
    gated_writes.gate_sessions(tenure.gate, neutron, repeats, tenure.clock)
    refused_requests.log_refusals()
    if nova_utils.concurrency_mode_threading():
        compat.set_build_executor(executors.make_build_executor(CONF))
    hooks = WorkerHooks(send, _freeze_objects, os._exit)
    components = Components(tenure, hooks, path_health)
    # Before the service is made, because that waits for nova-conductor.
    components.path_observer.start()
    service = Service(
        tenure.host,
        BINARY,
        manager=MANAGER,
        report_interval=CONF.report_interval,
        periodic_enable=CONF.periodic_enable,
        periodic_fuzzy_delay=CONF.periodic_fuzzy_delay,
        components=components,
        **compat.service_arguments(),
    )
    _check_old_computes()
    return service


def _check_old_computes() -> None:
    """Check the releases of all computes in Nova, as nova-compute does.

    :raises nova_exception.TooOldComputeService: one is too old for this Nova,
        and nova.conf does not allow that during an upgrade
    """
    try:
        nova_utils.raise_if_old_compute()
    except nova_exception.TooOldComputeService as exc:
        if not CONF.workarounds.disable_compute_service_check_for_ffu:
            raise
        LOG.warning('%(error)s', {'error': exc})


def _freeze_objects() -> None:
    """Keep the garbage collector from visiting long-lived objects.

    Modules and the records of the held nodes stay for the process's life;
    each visit to them would stop all threads. Garbage is collected first,
    because it would be frozen, too.
    """
    gc.collect()
    gc.freeze()
