# SPDX-License-Identifier: Apache-2.0
"""The agent's worker processes: one for each host that it serves.

``WorkerProcesses`` implements ``hashring.workers.Workers`` for the agent's
loop. Everything here runs in the agent's main thread, because the kernel
kills a worker when the thread that started it ends. Nothing here blocks on a
worker. Two workers start at the same time at most, because all of them would
be late if one controller adopted many hosts at once; hosts with servers come
first.
"""

import dataclasses
import os
import select
import signal
from collections.abc import Iterator, Mapping, Sequence

import attrs
from oslo_log import log as logging

from hashring import workers
from hashring.clock import Clock
from hashring.ring import Host
from ironic_compute.agent import pipe
from ironic_compute.agent.child import Child
from ironic_compute.agent.exit_codes import EX_CONFIG, EX_OSERR
from ironic_compute.agent.fork_server import ForkServer
from ironic_compute.agent.process_activity import Standstill, read_activity
from ironic_compute.agent.start_process import StartedForkServer
from ironic_compute.agent_port.worker_metrics import MetricsChannel

LOG = logging.getLogger(__name__)


_STARTS_AT_ONCE_COUNT = 2
# A start that takes longer than so many seconds is not counted any more.
_START_COUNTS_S = 30.0
# Seconds until the next spare worker is started after one has ended by itself.
_SPARE_HOLD_OFF_S = 60.0
# A worker sends a message every 5 s. If it is silent for longer than this, its
# agent looks each half second whether it stands still.
_WATCHED_AFTER_S = 6.0
_LOOK_INTERVAL_S = 0.5
# More than the signals that come in one turn; the rest ends the next wait.
_WAKE_BYTES_MAX = 64


@dataclasses.dataclass(slots=True)
class _Worker:
    """A worker process that serves a host.

    ``reported_at_s`` is the time of its last message. While ``is_importing``
    it cannot send any.
    """

    host: Host
    tenure: int
    child: Child
    started_at_s: float
    reported_at_s: float
    is_importing: bool = False
    has_closed_pipe: bool = False
    why_no_start: str | None = None
    is_serving: bool = False
    is_unread_logged: bool = False
    standstill: Standstill = dataclasses.field(default_factory=Standstill)
    look_due_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class _WaitingStart:
    """A worker that is started when fewer others are starting."""

    tenure: int
    has_servers: bool


@attrs.define(eq=False, repr=False, slots=False)
class WorkerProcesses:
    """The workers of one agent; the main thread makes all calls.

    :param command: command line of a worker, without ``--agent-pid`` and
        ``--report-fd``
    :param silence_s: seconds without a message after which a worker is killed
    :param start_s: the same for a worker that is importing Nova
    :param standstill_s: seconds for which a silent worker, which neither runs
        nor waits for the cpu, may stand still
    :param keeps_spare: keep a spare worker ready for the next host, while
        there is no fork server
    :param forks: have a fork server, which forks the workers
    :param has_metrics: other threads will read the metrics of the workers
    :param pool: the options of ``[ironic]`` that define the agent's pool, as
        the agent has read them
    :param fork_server: one that was started before
    """

    _command: Sequence[str]
    _home: Host
    _clock: Clock
    _silence_s: float
    _start_s: float
    _keeps_spare: bool
    _standstill_s: float = 6.0
    _has_metrics: bool = False
    _forks: bool = False
    _pool: Mapping[str, str | None] | None = None
    _started: StartedForkServer | None = attrs.field(
        default=None, alias='fork_server'
    )

    def __attrs_post_init__(self) -> None:
        self._fork_server = self._make_fork_server() if self._forks else None
        self._spare: Child | None = None
        self._spare_due_s = 0.0
        self._workers: dict[Host, _Worker] = {}
        self._waiting: dict[Host, _WaitingStart] = {}
        # Killed workers whose processes are not reaped yet.
        self._dying: list[Child] = []
        self._not_started: list[workers.WorkerEvent] = []
        self._instructions = pipe.NO_INSTRUCTIONS
        self._wake_fd: int | None = None

    def end_waits_on(self, fd: int) -> None:
        """Make each wait for events end when a byte can be read from ``fd``.

        :param fd: does not block
        """
        self._wake_fd = fd

    def _make_fork_server(self) -> ForkServer:
        return ForkServer(
            self._command,
            self._clock,
            start_s=self._start_s,
            standstill_s=self._standstill_s,
            has_metrics=self._has_metrics,
            started=self._started,
        )

    @property
    def is_loading(self) -> bool:
        """Whether the fork server is loading Nova."""
        server = self._fork_server
        return server is not None and server.is_up and not server.is_ready

    @property
    def lacks_fork_server(self) -> bool:
        """Whether there should be a fork server, and none has loaded Nova."""
        server = self._fork_server
        return server is not None and not server.is_ready

    def start(
        self, host: Host, tenure: int, has_servers: bool = False
    ) -> None:
        """Start the worker of a host now or when others have started.

        Does not block.
        """
        self._waiting[host] = _WaitingStart(tenure, has_servers)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start workers of waiting hosts: the home host, those with servers.

        The home host is first, because its agent is known by it. A host
        without servers has no users who wait for it.
        """
        now_s = self._clock.now_s()
        starting_count = sum(
            not worker.is_serving
            and now_s - worker.started_at_s < _START_COUNTS_S
            for worker in self._workers.values()
        )
        hosts = sorted(self._waiting, key=self._start_order)
        for host in hosts[: max(0, _STARTS_AT_ONCE_COUNT - starting_count)]:
            self._start(host)

    def _start_order(self, host: Host) -> tuple[bool, bool]:
        return host != self._home, not self._waiting[host].has_servers

    def _start(self, host: Host) -> None:
        """Start the worker of a waiting host, unless it must wait longer."""
        try:
            found = self._next_child()
        except OSError as exc:
            # The machine may lack memory or processes. The error is only
            # logged, because the agent must go on for the other workers.
            LOG.error(
                'Could not start the worker of host %(host)s: %(error)s',
                {'host': host, 'error': exc},
            )
            tenure = self._waiting.pop(host).tenure
            self._add_not_started(host, EX_OSERR, tenure)
            return
        if found is not None:
            self._appoint(host, *found)

    def _next_child(self) -> tuple[Child, str] | None:
        """Return a worker without a host and its kind, or request one.

        :returns: None if the fork server is going to fork one
        :raises OSError: no process can be started
        """
        if self._spare is not None:
            spare, self._spare = self._spare, None
            return spare, 'the spare'
        if self._fork_server is not None:
            if (forked := self._fork_server.take()) is not None:
                return forked, 'forked'
            if self._fork_server.request():
                return None
        return self._spawn(), 'new'

    def _appoint(self, host: Host, child: Child, kind: str) -> None:
        tenure = self._waiting.pop(host).tenure
        is_home = host == self._home
        child.appoint(host, is_home=is_home, pool=self._pool)
        now_s = self._clock.now_s()
        self._workers[host] = _Worker(host, tenure, child, now_s, now_s)
        LOG.info(
            'Started the worker of host %(host)s, process %(pid)d (%(kind)s)',
            {
                'host': host or '(none: it observes the paths)',
                'pid': child.process.pid,
                'kind': kind,
            },
        )

    def _spawn(self) -> Child:
        return Child.spawn(self._command, has_metrics=self._has_metrics)

    def _add_not_started(self, host: Host, status: int, tenure: int) -> None:
        self._not_started.append(
            workers.WorkerExited(host, status, None, tenure)
        )

    def stop(self, host: Host) -> None:
        """Send SIGTERM: the worker drains, then ends; does not block."""
        if host in self._waiting:
            self._add_not_started(host, 0, self._waiting.pop(host).tenure)
        if host in self._workers:
            self._workers[host].child.process.send_signal(signal.SIGTERM)

    def kill(self, host: Host) -> None:
        """Kill a worker; it executes nothing after this.

        Blocks for a second if the process is in a system call without end.
        """
        self._waiting.pop(host, None)
        worker = self._workers.pop(host, None)
        if worker is not None and not worker.child.kill():
            self._dying.append(worker.child)
            LOG.error(
                'The worker of host %(host)s, process %(pid)d, was killed and '
                'waits in a system call; it does nothing any more',
                {'host': host, 'pid': worker.child.process.pid},
            )

    def close(self) -> None:
        """Kill spare worker and fork server; :meth:`kill` ends the others."""
        self._keeps_spare = False
        self._end_spare()
        if self._fork_server is not None:
            self._fork_server.close()

    def _end_spare(self) -> None:
        if self._spare is not None:
            self._kill_unused(self._spare)
            self._spare = None

    def _kill_unused(self, child: Child) -> None:
        """Kill a worker without a host; reap it later if it takes long."""
        if not child.kill():
            self._dying.append(child)

    def metrics_channels(self) -> dict[Host, MetricsChannel]:
        """Return the ways to the metrics of the workers that serve."""
        return {
            worker.host: worker.child.metrics
            for worker in self._workers.values()
            if worker.is_serving and worker.child.metrics is not None
        }

    def deliver_view(self, view: workers.WorkerView) -> None:
        """Send a view to each worker; replaces a view not read yet."""
        line = pipe.encode_view(view, self._instructions)
        for worker in self._workers.values():
            worker.child.down.write(line)

    def reload_options(self) -> None:
        """Make all workers read their mutable options with the next view."""
        self._instructions = dataclasses.replace(
            self._instructions, reloads=self._instructions.reloads + 1
        )

    def write_reports(self) -> None:
        """Make all workers write a report with the next view."""
        self._instructions = dataclasses.replace(
            self._instructions, reports=self._instructions.reports + 1
        )

    def events(self, timeout_s: float) -> Sequence[workers.WorkerEvent]:
        """Wait for a message or the end of a worker; return all events."""
        self._dying = [c for c in self._dying if not c.has_ended()]
        self._check_fork_server()
        self._start_waiting()
        self._keep_spare()
        server = self._fork_server
        # Not before: a request that it does not take closes its socket.
        others = [] if server is None else server.fds()
        fds = {}
        for worker in self._workers.values():
            fds[worker.child.pid_fd] = worker.host
            if not worker.has_closed_pipe:
                fds[worker.child.up_fd] = worker.host
        ready = self._wait([*fds, *others], timeout_s)
        events, self._not_started = self._not_started, []
        for host in sorted({fds[fd] for fd in ready if fd in fds}):
            events += self._receive(self._workers[host])
        return [*events, *self._kill_silent()]

    def _wait(self, fds: list[int], timeout_s: float) -> list[int]:
        """Wait for one of ``fds`` or a signal; return what can be read."""
        wake_fds = [] if self._wake_fd is None else [self._wake_fd]
        ready, _, _ = select.select([*fds, *wake_fds], [], [], timeout_s)
        for fd in set(ready).intersection(wake_fds):
            os.read(fd, _WAKE_BYTES_MAX)
        return ready

    def _check_fork_server(self) -> None:
        """Let the fork server go on."""
        if self._fork_server is None:
            return
        self._fork_server.check()
        unused = None if self._waiting else self._fork_server.take()
        if unused is not None:
            self._kill_unused(unused)  # Its host is not to be served any more.

    def _keep_spare(self) -> None:
        """Start a spare worker if there is none and no worker is starting.

        A fork server takes its place.
        """
        if self._fork_server is not None and self._fork_server.is_up:
            if self._fork_server.is_ready:
                self._end_spare()
            return
        if self._spare is not None and self._spare.has_ended():
            LOG.warning(
                'The spare worker, process %(pid)d, ended with status '
                '%(status)d; the next one is made in %(wait)d s',
                {
                    'pid': self._spare.process.pid,
                    'status': self._spare.process.returncode,
                    'wait': _SPARE_HOLD_OFF_S,
                },
            )
            self._spare.close()
            self._spare = None
            self._spare_due_s = self._clock.now_s() + _SPARE_HOLD_OFF_S
        is_due = self._keeps_spare and self._clock.now_s() > self._spare_due_s
        all_serve = all(w.is_serving for w in self._workers.values())
        all_serve = all_serve and not self._waiting
        if is_due and all_serve and self._spare is None:
            self._make_spare()

    def _make_spare(self) -> None:
        try:
            self._spare = self._spawn()
        except OSError as exc:
            LOG.warning(
                'Could not start a spare worker: %(error)s', {'error': exc}
            )
            self._spare_due_s = self._clock.now_s() + _SPARE_HOLD_OFF_S

    def _receive(self, worker: _Worker) -> list[workers.WorkerEvent]:
        events: list[workers.WorkerEvent] = []
        # The end is checked before the pipe is read, because all messages of a
        # process that has ended are in the pipe then.
        has_ended = worker.child.has_ended()
        try:
            for line in worker.child.up.lines(0):
                worker.reported_at_s = self._clock.now_s()
                events += self._decode(worker, line)
        except EOFError:
            worker.has_closed_pipe = True  # The process is ending.
        return [*events, self._reap(worker)] if has_ended else events

    def _decode(
        self, worker: _Worker, line: bytes
    ) -> list[workers.WorkerEvent]:
        try:
            message = pipe.decode_message(line)
        except ValueError as exc:
            # After an upgrade of the package a new worker is of a newer
            # release than this agent.
            _log_unread(worker, exc)
            return []
        worker.is_importing = isinstance(message, pipe.IsStarting)
        match message:
            case pipe.IsServing():
                worker.is_serving = True
                return [workers.WorkerServing(worker.host, worker.tenure)]
            case pipe.Services(facts=facts):
                return [workers.ServicesRead(facts)]
            case pipe.Paths(states=states):
                return [
                    workers.PathsObserved(worker.host, states, worker.tenure)
                ]
            case pipe.CannotStart(sentence=sentence):
                worker.why_no_start = sentence
                LOG.error(
                    'The worker of host %(host)s cannot serve it: %(reason)s',
                    {'host': worker.host, 'reason': sentence},
                )
            case (
                workers.HostAdded()
                | workers.HostForgotten()
                | workers.HostRetired()
                | workers.MappingConfirmed()
            ) as request:
                return [request]
            case pipe.IsStarting() | pipe.IsAlive():
                pass  # The message only shows that the worker does not hang.
        return []

    def _reap(self, worker: _Worker) -> workers.WorkerExited:
        del self._workers[worker.host]
        worker.child.close()
        status = worker.child.process.returncode
        LOG.info(
            'The worker of host %(host)s ended with status %(status)d',
            {'host': worker.host, 'status': status},
        )
        fatal = worker.why_no_start if status == EX_CONFIG else None
        return workers.WorkerExited(worker.host, status, fatal, worker.tenure)

    def _kill_silent(self) -> Iterator[workers.WorkerEvent]:
        now_s = self._clock.now_s()
        for worker in list(self._workers.values()):
            limit_s = self._start_s if worker.is_importing else self._silence_s
            silent_s = now_s - worker.reported_at_s
            if silent_s > limit_s:
                LOG.error(
                    'Killed the worker of host %(host)s: it sent no message '
                    'for %(silence)d s',
                    {'host': worker.host, 'silence': limit_s},
                )
            elif self._is_stuck(worker, now_s):
                LOG.error(
                    'Killed the worker of host %(host)s: it sent no message '
                    'for %(silence)d s and stands still: it is stopped, or '
                    'waits for a lock or a disk',
                    {'host': worker.host, 'silence': silent_s},
                )
            else:
                continue
            self.kill(worker.host)
            yield workers.WorkerExited(
                worker.host, -signal.SIGKILL, None, worker.tenure
            )

    def _is_stuck(self, worker: _Worker, now_s: float) -> bool:
        """Look whether a silent worker stands still, and for how long."""
        if now_s - worker.reported_at_s <= _WATCHED_AFTER_S:
            worker.standstill = Standstill()
        elif now_s >= worker.look_due_s:
            worker.look_due_s = now_s + _LOOK_INTERVAL_S
            worker.standstill.update(
                read_activity(worker.child.process.pid),
                now_s,
                is_importing=worker.is_importing,
            )
        return worker.standstill.lasts_s > self._standstill_s


def _log_unread(worker: _Worker, why: ValueError) -> None:
    level = logging.DEBUG if worker.is_unread_logged else logging.WARNING
    worker.is_unread_logged = True
    LOG.log(
        level,
        'Ignored a message of the worker of host %(host)s that cannot be '
        'read: %(why)s',
        {'host': worker.host, 'why': why},
    )
