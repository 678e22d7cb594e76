# SPDX-License-Identifier: Apache-2.0
"""The language of the transcripts: each line is an event of `Assignment`.

Time and set-up:

  agent HOME BACKEND [TOKEN]            a new assignment; TOKEN is that of the
                                        home lock of an earlier process
  at SECONDS                            the time of the following lines
  known HOST...                         the known hosts of the pool
  members MEMBER...                     the member list, from now on
  lease DEADLINE EPOCH [lost HOST...]   the result of the last heartbeat

A MEMBER is HOME, then whatever differs from the normal: `/BOOT`, `=HOST,HOST`
(the hosts it serves), `!restarting`, `!leaving`, `-home` (`wants_home` is
False).

Results of lock requests: granted, slow (granted too late), denied, proven,
disproven, released, unreleased, each with HOST TICKET. Events of workers:
exited HOST [MESSAGE]. Requests of the operator: stop, drain. `tick` lets time
pass; `tell` prints the values that workers get. `> ` begins an effect of the
line above it.
"""

import dataclasses
import enum
import re
from typing import Any

from hashring import events
from hashring.adoption import NOBODY, View
from hashring.assignment import Assignment
from hashring.group import Boot, LockToken, Member, MemberState
from hashring.opts import Timing
from hashring.ring import Host
from hashring.workers import WorkerExited
from tests.unit.hashring import coordination

BACKENDS = {
    'etcd': coordination.ETCD,
    'redis': coordination.CACHE,
    'zookeeper': coordination.ZOOKEEPER,
}
MEMBER = re.compile(r'(\w+)(?:/(\w+))?(?:=([\w,]+))?(?:!(\w+))?(-home)?$')


class Teller:
    """Runs one transcript on one assignment."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._view = NOBODY
        self._machine: Assignment | None = None

    def say(self, line: str) -> list[str]:
        """Run one line; return the lines of its effects."""
        word, *rest = line.split()
        match word:
            case 'agent':
                self._machine = _machine(*rest)
            case 'at':
                self._now_s = float(rest[0])
            case 'members':
                self._view = View(tuple(map(_member, rest)))
            case 'tell':
                return self._told()
            case _:
                return self._handle(self._event(word, rest))
        return []

    @property
    def machine(self) -> Assignment:
        assert self._machine is not None, 'begin with: agent HOME BACKEND'
        return self._machine

    def _handle(self, event: events.Event) -> list[str]:
        return [_shown(e) for e in self.machine.handle(event, self._now_s)]

    def _told(self) -> list[str]:
        machine = self.machine
        opens_s = machine.opens_s(self._now_s)
        return [
            f'deadline {machine.deadline_s():g}',
            f'serving {" ".join(machine.serving()) or "nothing"}',
            *(f'{host} opens at {s:g}' for host, s in opens_s.items()),
        ]

    def _event(self, word: str, rest: list[str]) -> events.Event:
        match word:
            case 'known':
                return events.KnownHosts(frozenset(map(Host, rest)))
            case 'lease':
                lost = frozenset(map(Host, rest[3:]))
                deadline_s, epoch = float(rest[0]), int(rest[1])
                return events.LeaseStatus(
                    deadline_s, epoch, self._view, lost, self._now_s
                )
            case 'exited':
                return WorkerExited(
                    Host(rest[0]), 1, ' '.join(rest[1:]) or None
                )
            case 'stop' | 'drain':
                return events.Leave(restarting=word == 'stop')
            case 'tick':
                return events.Tick()
            case _:
                return _answer(word, Host(rest[0]), int(rest[1]))


def _answer(word: str, host: Host, ticket: int) -> events.Event:
    match word:
        case 'granted':
            return events.LockGranted(host, ticket)
        case 'slow':
            return events.LockGranted(host, ticket, counts=False)
        case 'denied':
            return events.LockRefused(host, ticket)
        case 'proven' | 'disproven':
            return events.LockChecked(host, ticket, word == 'proven')
        case 'released' | 'unreleased':
            return events.LockReleased(host, ticket, word == 'released')
        case _:
            raise ValueError(f'no such line: {word}')


def _machine(home: str, backend: str, token: str = '') -> Assignment:
    return Assignment(
        Host(home),
        Boot(f'{home}b'),
        Timing(),
        BACKENDS[backend],
        left_lock=LockToken(token) if token else None,
    )


def _member(text: str) -> Member:
    found = MEMBER.match(text)
    assert found, f'no member: {text}'
    home, boot, serving, state, unwilling = found.groups()
    return Member(
        home=Host(home),
        boot=Boot(boot or f'{home}b'),
        machine=f'machine-of-{boot or home}',
        state=MemberState(state or 'up'),
        grace_s=30.0 if state == 'restarting' else 0.0,
        serving=tuple(map(Host, serving.split(','))) if serving else (),
        wants_home=not unwilling,
    )


def _shown(effect: Any) -> str:
    fields = dataclasses.fields(effect)
    shown = (_word(f.name, getattr(effect, f.name)) for f in fields)
    return ' '.join([type(effect).__name__, *filter(None, shown)])


def _word(name: str, value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f'({value.value})'
    if name == 'waited_s':
        return f'after {value:g} s' if value else ''
    if name == 'again':
        return 'again' if value else ''
    if name in ('ticket', 'tenure'):
        return f'{name} {value}'
    return str(value)
