# SPDX-License-Identifier: Apache-2.0
"""Log messages of the agent for operators: lease, adoption, agreement, exit.

The agent's main thread calls it. The messages are in one module so that they
can be read together; the manual lists them.
"""

import dataclasses
from collections.abc import Sequence

from oslo_log import log as logging

from hashring import events
from hashring.backend import OPTION
from hashring.group import Member
from hashring.half_alive import Cause
from hashring.heartbeat import HeartbeatState
from hashring.lease import Verdict
from hashring.paths import Path, PathStates, failing, working
from hashring.ring import Host

LOG = logging.getLogger(__name__)

# Seconds. A shorter disagreement about the ring is normal: an agent may just
# have started, or its workers read Nova's Services later than others.
_DISAGREEMENT_S = 10.0
# A service that is restarted fails for some seconds.
_PATH_FAILS_S = 20.0


class OperatorLog:
    """Logs each change of one agent's state once.

    :param home: the home host of the agent
    :param backend_name: of the coordination backend, without credentials
    :param now_s: when the agent started (CLOCK_BOOTTIME)
    """

    def __init__(self, home: Host, backend_name: str, now_s: float) -> None:
        self._home = home
        self._backend_name = backend_name
        self._began_s = now_s
        self._is_waiting_logged = False
        self._held = False
        # When the lease ended, and its latest deadline (CLOCK_BOOTTIME).
        self._lost_at_s: float | None = None
        self._deadline_s = 0.0
        self._disagree_since_s: float | None = None
        self._is_disagreement_logged = False
        self._terms_logged: frozenset[float] = frozenset()
        self._is_former_pool_logged = False
        self._failing_since_s: dict[Path, float] = {}
        self._half_alive_since_s: float | None = None

    def log_lease(self, state: HeartbeatState, now_s: float) -> None:
        """Log that the lease was won or lost, and why."""
        held = state.lease.held(now_s)
        self._deadline_s = max(self._deadline_s, state.lease.deadline_s)
        if held and not self._held:
            self._log_lease_won(state, now_s)
        elif self._held and not held:
            # An agent that stood still notices late. A lease that was broken
            # has ended before its deadline.
            self._lost_at_s = min(self._deadline_s, now_s)
            LOG.info(
                'Lost the lease of %(home)s, gates are shut: %(why)s',
                {'home': self._home, 'why': self._why_lost(state)},
            )
        elif not held and self._lost_at_s is None:
            self._log_not_joined(state, now_s)
        self._held = held

    def _log_not_joined(self, state: HeartbeatState, now_s: float) -> None:
        """Log once that the agent has not joined within a term."""
        waited_s = now_s - self._began_s
        if waited_s > state.lease.term_s and not self._is_waiting_logged:
            self._is_waiting_logged = True
            LOG.warning(
                'Has not joined the group as %(home)s after %(waited_s)d s, '
                'trying on: %(why)s',
                {
                    'home': self._home,
                    'waited_s': waited_s,
                    'why': self._why_lost(state),
                },
            )

    def _log_lease_won(self, state: HeartbeatState, now_s: float) -> None:
        # A daemon that was restarted has two records for a while.
        others = sorted(
            {m.home for m in state.view.members if m.home != self._home}
        )
        names = {
            'home': self._home,
            'others': ', '.join(others) or 'nobody else',
        }
        if self._lost_at_s is None:
            LOG.info('Joined the group as %(home)s, beside %(others)s', names)
        else:
            LOG.info(
                'The lease of %(home)s is back after %(gone_s).1f s in which '
                'it was not in force, beside %(others)s',
                {**names, 'gone_s': now_s - self._lost_at_s},
            )

    def _why_lost(self, state: HeartbeatState) -> str:
        if state.failure is not None:
            name, why = self._backend_name, state.failure
            return f'{OPTION} {name} does not answer ({why})'
        if state.verdict is Verdict.NOT_LISTED:
            return Verdict.NOT_LISTED.value
        if state.verdict is Verdict.LATE:
            return f'a heartbeat was of no use, {Verdict.LATE.value}'
        return 'no heartbeat came back in time'

    def log_disagreement(self, others: Sequence[Member], now_s: float) -> None:
        """Log once which members disagree about the ring, after ten seconds.

        :param others: the members with another ring than this agent or with
            none; empty if all agree
        """
        if not others:
            self._disagree_since_s, self._is_disagreement_logged = None, False
            return
        if self._disagree_since_s is None:
            self._disagree_since_s = now_s
        waited_s = now_s - self._disagree_since_s
        if waited_s >= _DISAGREEMENT_S and not self._is_disagreement_logged:
            self._is_disagreement_logged = True
            LOG.info(
                'The pool has not agreed on its hosts for %(waited_s)d s and '
                'takes no new nodes: %(others)s',
                {
                    'waited_s': waited_s,
                    # A former process of an agent has a record, too.
                    'others': ', '.join(
                        dict.fromkeys(map(_describe_ring, others))
                    ),
                },
            )

    def log_lease_terms(self, members: Sequence[Member]) -> None:
        """Log each mix of lease terms once; an older release publishes none.

        :param members: all members of the group
        """
        terms_s = frozenset(m.lease_term_s for m in members) - {0.0}
        if len(terms_s) > 1 and terms_s != self._terms_logged:
            LOG.warning(
                'The daemons of this pool have different [coordination] '
                'lease_term_s: %(terms)s',
                {
                    'terms': ', '.join(
                        f'{m.home} {m.lease_term_s:g} s' for m in members
                    )
                },
            )
        self._terms_logged = terms_s

    def log_former_pool(self, others: Sequence[Host]) -> None:
        """Log once that another pool counts on this home host.

        :param others: the home hosts of the agents of that pool
        """
        if others and not self._is_former_pool_logged:
            self._is_former_pool_logged = True
            LOG.warning(
                'Host %(home)s is still a host of another pool, that of '
                '%(others)s, and gets nodes there that this daemon does not '
                'serve: give it its former [ironic] conductor_group and shard '
                'again, run "ironic-computectl host retire %(home)s", and '
                'start it in the new pool after that',
                {'home': self._home, 'others': ', '.join(others)},
            )

    def log_paths(
        self, states: PathStates, members: Sequence[Member], now_s: float
    ) -> None:
        """Log once that a path fails for 20 seconds, and once that it works.

        :param states: the paths of this controller
        :param members: all members of the group
        """
        for path in failing(states, now_s, _PATH_FAILS_S):
            if path not in self._failing_since_s:
                since_s = states[path].failing_since_s or now_s
                self._failing_since_s[path] = since_s
                LOG.warning(
                    '%(home)s has not reached %(path)s for %(failing_s)d s '
                    '(%(why)s); %(others)s',
                    {
                        'home': self._home,
                        'path': path,
                        'failing_s': now_s - since_s,
                        'why': states[path].why,
                        'others': self._who_reaches(path, members),
                    },
                )
        for path in set(working(states)) & self._failing_since_s.keys():
            since_s = self._failing_since_s.pop(path)
            LOG.info(
                '%(home)s reaches %(path)s again after %(failing_s)d s',
                {
                    'home': self._home,
                    'path': path,
                    'failing_s': now_s - since_s,
                },
            )

    def _who_reaches(self, path: Path, members: Sequence[Member]) -> str:
        homes = sorted(
            m.home
            for m in members
            if path in m.working_paths and m.home != self._home
        )
        return f'reached by {", ".join(homes)}' if homes else 'nobody does'

    def log_half_alive(
        self, cause: Cause | None, return_wait_s: float, now_s: float
    ) -> None:
        """Log once that the agent is half alive, and once that it is not.

        :param return_wait_s: how long its paths must work then
        """
        if (cause is None) == (self._half_alive_since_s is None):
            return
        if cause is not None:
            self._half_alive_since_s = now_s
            LOG.warning(
                '%(home)s gives all its hosts away: it has not reached '
                '%(path)s for %(failing_s)d s (%(why)s), and %(peer)s does. '
                'It takes hosts again when all services have answered for '
                '%(wait_s)d s',
                {
                    'home': self._home,
                    'path': cause.path,
                    'failing_s': now_s - cause.since_s,
                    'why': cause.why,
                    'peer': cause.peer,
                    'wait_s': return_wait_s,
                },
            )
        elif self._half_alive_since_s is not None:
            LOG.info(
                '%(home)s takes hosts again after %(away_s)d s',
                {
                    'home': self._home,
                    'away_s': now_s - self._half_alive_since_s,
                },
            )
            self._half_alive_since_s = None

    def log_leaving(self, *, restarting: bool) -> None:
        """Log that the agent begins to leave."""
        LOG.info(
            'Leaving %(how)s; releasing every host',
            {'how': 'for a restart' if restarting else 'for good'},
        )

    def log_effect(self, effect: events.Effect) -> None:
        """Log an effect of the assignment that matters to an operator."""
        match effect:
            case events.Start(why=events.Why.ADOPTED):
                LOG.info(
                    'Adopted %(host)s after %(waited_s).1f s without its '
                    'own agent, tenure %(tenure)d',
                    dataclasses.asdict(effect),
                )
            case events.Start():
                LOG.info(
                    'Serving home host %(host)s, tenure %(tenure)d',
                    dataclasses.asdict(effect),
                )
            case events.Stop(host=host, why=why):
                _log_reason('Draining the worker of', host, why)
            case events.Kill(host=host, why=why):
                _log_reason('Killed the worker of', host, why)
            case events.Release(again=True):
                pass  # The first request to release this lock was logged.
            case events.Release(host=host, why=events.Why.HAND_BACK):
                LOG.info('Handed back %(host)s', {'host': host})
            case events.Release(host=host, why=why):
                _log_reason('Let go of', host, why)
            case events.Pause(host=host):
                LOG.info('Paused %(host)s', {'host': host})
            case events.ResumeWorker(host=host):
                LOG.info('Resumed %(host)s: its lock survived', {'host': host})
            case events.Abort(message=message):
                LOG.error('%(sentence)s', {'sentence': message})
            case _:
                pass  # The others are lock requests, whose results are logged.


def _log_reason(what: str, host: Host, why: events.Why) -> None:
    LOG.info(
        '%(what)s %(host)s: %(why)s',
        {'what': what, 'host': host, 'why': why.value},
    )


def _describe_ring(member: Member) -> str:
    what = 'another ring' if member.ring else 'no ring yet'
    return f'{member.home} on {member.machine} has {what}'
