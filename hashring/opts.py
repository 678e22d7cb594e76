# SPDX-License-Identifier: Apache-2.0
"""Options of the group `[coordination]`, and checks that they fit each other.

`register_opts` takes the ConfigOpts object, because hashring has no global
CONF. The agent calls `check_options` once, at its start.
"""

import dataclasses
from typing import Any

from oslo_config import cfg

from hashring import errors

GROUP = 'coordination'
# Seconds from the start of a worker to its first report to Nova that it is up.
# The restart grace must leave so much time before Nova shows the Service as
# down.
WORKER_START_S = 5.0
# ``lease_margin_s`` is 2 s or more, and at most a third of the term.
LEASE_TERM_MIN_S = 6.0
# A service that is restarted, or a single slow request, is no reason to move.
HALF_ALIVE_MIN_S = 10.0

OPTS = [
    cfg.StrOpt(
        'backend_url',
        default='file:///var/lib/ironic-compute/coordination',
        secret=True,
        help='The coordination backend in which the agents of a pool find '
        'each other: a tooz URL. file:///FOLDER needs no server and works '
        'only for agents on one machine. etcd3+http://HOST:PORT, '
        'etcd3+https://HOST:PORT, zookeeper://HOST:PORT, redis://HOST:PORT '
        'and memcached://HOST:PORT work for many machines. Name the other '
        'members of an etcd or ZooKeeper cluster in hosts, such as '
        'etcd3+http://HOST1:PORT?hosts=HOST2:PORT,HOST3:PORT, and the '
        'master of Redis in sentinel, if Sentinel chooses it. redis and '
        'memcached can forget a lock when they restart; with them a host '
        'that was taken over waits one more lease_term_s before it changes '
        'anything. mysql, postgresql, ipc and kubernetes are refused because '
        'they do not support groups. Time-outs that the URL does not set are '
        'derived from lease_term_s.',
    ),
    cfg.IntOpt(
        'lease_term_s',
        default=15,
        min=3,
        # ZooKeeper's servers limit a session's time-out to 20 of their ticks,
        # 40 s by default.
        max=40,
        help='Seconds after its last heartbeat until an agent counts as gone. '
        'Lower: hosts of a crashed controller are served again sooner. '
        'Higher: longer stalls of the backend or of the machine have no '
        'effect. Should be the same in all agents of a pool; while it is '
        'not, the longest one counts for an adopted host. Agents send a '
        'heartbeat every fifth of it.',
    ),
    cfg.FloatOpt(
        'lease_margin_s',
        default=3.0,
        min=2.0,
        max=15.0,
        help='Seconds before the end of its lease at which an agent stops to '
        'change anything, without waiting for an answer of the backend. '
        'Lower: more of each lease can be used. Higher: clocks of different '
        'speed and requests that are still on their way do less harm. At '
        'least 2, because memcached may release a lock up to a second early; '
        'at most a third of lease_term_s.',
    ),
    cfg.FloatOpt(
        'adopt_step_s',
        default=2.0,
        min=0.5,
        max=30.0,
        help='Seconds between the attempts of different agents to adopt a '
        'host whose own agent is gone: the first agent in line waits one '
        'step, the second two. Lower: the host is served again sooner. '
        'Higher: fewer agents try to take the same lock at once. At least '
        'loop_interval_s.',
    ),
    cfg.FloatOpt(
        'restart_grace_s',
        default=30.0,
        min=0.0,
        max=600.0,
        help='Seconds for which the other agents do not adopt the host of an '
        'agent that was stopped with SIGTERM, so that a restart moves no '
        'host. Lower: a host that does not come back is adopted sooner. '
        'Higher: slower restarts are possible. It must end before Nova '
        'counts the service as down: at most [DEFAULT] service_down_time - '
        'report_interval - lease_term_s - 5.',
    ),
    cfg.FloatOpt(
        'drain_timeout_s',
        default=60.0,
        min=1.0,
        max=600.0,
        help='Seconds a worker may take to finish its tasks, or to leave them '
        'to the next worker, when its host is handed back or its agent '
        'stops; after that its agent kills it. Lower: quicker stops. Higher: '
        'fewer tasks are interrupted and continued by the next worker; '
        'TimeoutStopSec of the systemd unit must be half a minute longer.',
    ),
    cfg.FloatOpt(
        'half_alive_s',
        default=15.0,
        min=0.0,
        max=600.0,
        help='Seconds for which this agent must have failed to reach '
        'RabbitMQ, nova-conductor, Ironic, Placement or Neutron before it '
        'gives its hosts to an agent that does; if no agent does, no host '
        'moves. It takes them back when the service has answered for three '
        'times as long, and twice as long after each relapse within an hour. '
        'Lower: requests of users wait less. Higher: fewer moves because of '
        'short failures. 0: hosts never move because of such a failure; '
        'otherwise at least 10.',
    ),
    cfg.FloatOpt(
        'loop_interval_s',
        default=1.0,
        min=0.1,
        max=5.0,
        help="Seconds between two rounds of the agent's loop when no event "
        'wakes it. Lower: quicker reactions. Higher: less CPU. At most '
        'adopt_step_s, and best less than 0.8 * lease_term_s - '
        'lease_margin_s.',
    ),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """The durations of the lease protocol in seconds, as options set them."""

    lease_term_s: float = 15.0
    lease_margin_s: float = 3.0
    adopt_step_s: float = 2.0
    restart_grace_s: float = 30.0
    drain_timeout_s: float = 60.0
    loop_interval_s: float = 1.0
    settle_s: float = 5.0
    half_alive_s: float = 15.0

    @property
    def heartbeat_interval_s(self) -> float:
        """A fifth of the term: four consecutive heartbeats may fail."""
        return self.lease_term_s / 5

    @classmethod
    def from_conf(cls, conf: Any, *, settle_s: float = 5.0) -> 'Timing':
        """Return the durations that `[coordination]` sets.

        :param conf: a ConfigOpts on which `register_opts` was called.
        :param settle_s: seconds for which all agents must have the same ring
            before it counts as agreed; an option of the caller.
        """
        group = conf[GROUP]
        return cls(
            lease_term_s=float(group.lease_term_s),
            lease_margin_s=group.lease_margin_s,
            adopt_step_s=group.adopt_step_s,
            restart_grace_s=group.restart_grace_s,
            drain_timeout_s=group.drain_timeout_s,
            loop_interval_s=group.loop_interval_s,
            settle_s=settle_s,
            half_alive_s=group.half_alive_s,
        )


def register_opts(conf: Any) -> None:
    """Register the options of `[coordination]`; may be called twice."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """Return the options for oslo-config-generator."""
    return [(GROUP, OPTS)]


def check_options(
    conf: Any,
    *,
    service_down_time_s: float | None = None,
    report_interval_s: float | None = None,
) -> None:
    """Check the relations between options.

    :param service_down_time_s: Nova's `[DEFAULT] service_down_time`; None
        leaves the relation to it unchecked.
    :param report_interval_s: Nova's `[DEFAULT] report_interval`.
    :raises ConfigError: the message names the option and the cure.
    """
    timing = Timing.from_conf(conf)
    if timing.lease_margin_s > timing.lease_term_s / 3:
        raise errors.ConfigError(
            f'[coordination] lease_margin_s is {timing.lease_margin_s:g}, '
            'more than a third of lease_term_s '
            f'({timing.lease_term_s:g}): raise lease_term_s or lower '
            'lease_margin_s.'
        )
    if timing.adopt_step_s < timing.loop_interval_s:
        raise errors.ConfigError(
            f'[coordination] adopt_step_s is {timing.adopt_step_s:g}, less '
            f'than loop_interval_s ({timing.loop_interval_s:g}): raise '
            'adopt_step_s.'
        )
    if 0 < timing.half_alive_s < HALF_ALIVE_MIN_S:
        raise errors.ConfigError(
            f'[coordination] half_alive_s is {timing.half_alive_s:g}: set it '
            f'to {HALF_ALIVE_MIN_S:g} or more, or to 0 so that no host moves '
            'because of a service that one agent does not reach.'
        )
    if service_down_time_s is not None:
        _check_grace(timing, service_down_time_s, report_interval_s or 10.0)


def _check_grace(
    timing: Timing, service_down_time_s: float, report_interval_s: float
) -> None:
    room_s = service_down_time_s - report_interval_s - WORKER_START_S
    most_s = room_s - timing.lease_term_s
    if timing.restart_grace_s > most_s:
        cure = f'set it to {most_s:g} or less, or '
        if most_s < 0:  # Not even 0 is short enough.
            cure = f'set it to 0 and lower lease_term_s to {room_s:g}, or '
        if room_s < LEASE_TERM_MIN_S:  # No lease is short enough, either.
            cure = ''
        raise errors.ConfigError(
            f'[coordination] restart_grace_s is {timing.restart_grace_s:g}, '
            f'but Nova would call the service down before a take-over: '
            f'{cure}raise [DEFAULT] service_down_time in nova.conf.'
        )
