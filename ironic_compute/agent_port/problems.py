# SPDX-License-Identifier: Apache-2.0
"""The problems of an agent and its pool, as sentences for the status page.

Each problem names the alert of ``etc/prometheus`` that watches the same thing,
and thus the section of the manual that says what to do. What ``fsck`` would
find, too, has the same name and cure here as there. Pure.
"""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from hashring.agent_status import AgentStatus
from hashring.ring import Host
from hashring.workers import ServiceFacts
from ironic_compute import catalogue
from ironic_compute.agent_port.figures import HostFigures

# A change is in Placement within a second; builds in progress are not counted.
# An operator who looks at the page has just seen that something is wrong.
OLD_DIRTY_S = 10.0
# Of hosts with the same finding.
_NAMED_MAX = 5


class Alert(enum.StrEnum):
    """The alerts that the page knows the causes of, by their names."""

    DOWN = 'IronicComputeDown'
    MAIN_LOOP_STUCK = 'IronicComputeMainLoopStuck'
    LEASE_LOST = 'IronicComputeLeaseLost'
    BACKEND_FAILS = 'IronicComputeBackendFails'
    HALF_ALIVE = 'IronicComputeHalfAlive'
    HOST_UNSERVED = 'IronicComputeHostUnserved'
    HOST_NOT_IN_RING = 'IronicComputeHostNotInRing'
    RING_DISAGREEMENT = 'IronicComputeRingDisagreement'
    PATH_FAILING = 'IronicComputePathFailing'
    WORKER_SILENT = 'IronicComputeWorkerSilent'
    DIRTY_NODE = 'IronicComputeDirtyNode'
    NODE_WITHOUT_CLASS = 'IronicComputeNodeWithoutClass'
    FINDING = 'IronicComputeFinding'


# Why a host is not in the ring, in a table of hosts.
NO_SERVICE, DISABLED = 'no Service in Nova', 'disabled in Nova'
NOT_MAPPED = 'not mapped to a cell'

# What an operator may have wanted: no cause to be woken.
NOTES = frozenset(
    {Alert.HOST_NOT_IN_RING, Alert.NODE_WITHOUT_CLASS, Alert.FINDING}
)
_CHECKS = {check.name: check for check in catalogue.ALL}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One sentence, and the alert about the same thing.

    :param check: what ``fsck`` calls it; None if ``fsck`` does not look for it
    :param host: what the sentence is about; '' if it is no single host
    :param phrase: the same without the name of the host, for a table of hosts;
        '' if it does not belong there
    :param remedy: what the operator can do, if it is not the cure of ``check``
    """

    alert: Alert
    text: str
    check: catalogue.Check | None = None
    host: str = ''
    phrase: str = ''
    remedy: str = ''

    @property
    def is_note(self) -> bool:
        """Whether an operator may have wanted it so."""
        return self.alert in NOTES

    @property
    def cure(self) -> str:
        """What the operator can do; '' if only the manual says it."""
        if self.remedy or self.check is None:
            return self.remedy
        host = self.host or 'HOST'
        return self.check.cure.format(
            host=host, node='NODE', server='SERVER', other='OTHER'
        )

    def as_json(self) -> dict[str, Any]:
        """Return the problem as JSON values."""
        return {
            'alert': self.alert.value,
            'check': None if self.check is None else self.check.name,
            'host': self.host,
            'phrase': self.phrase,
            'text': self.text,
            'cure': self.cure,
            'is_note': self.is_note,
        }

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> 'Problem':
        """Return a problem that the port of a daemon has answered.

        :raises KeyError, TypeError, ValueError: it is none, or its alert is of
            a later release
        """
        found = cls(
            Alert(raw['alert']),
            str(raw['text']),
            _CHECKS.get(raw['check']),
            str(raw['host']),
            str(raw['phrase']),
        )
        cure = str(raw['cure'])
        is_usual = cure == found.cure
        return found if is_usual else dataclasses.replace(found, remedy=cure)


def find_problems(
    status: AgentStatus,
    figures: Mapping[Host, HostFigures],
    now_s: float,
    silent: Collection[Host] = (),
) -> list[Problem]:
    """Return all problems that the agent can see, the worst first.

    :param figures: those of the hosts whose worker has answered
    :param silent: the home hosts of daemons whose port does not answer
    """
    return [
        *_of_agent(status, now_s),
        *_of_peers(silent),
        *_of_hosts(status, now_s),
        *_of_pool(status),
        *_of_workers(status, figures, now_s),
        *_notes(status, figures),
    ]


def merge_findings(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems with one for each finding, however many hosts.

    Nodes of all hosts of a large pool may have the same finding.
    """
    found: dict[object, list[Problem]] = {}
    for number, each in enumerate(problems):
        is_finding = each.alert is Alert.FINDING
        found.setdefault(each.check if is_finding else number, []).append(each)
    return [_merge(group) for group in found.values()]


def _merge(group: list[Problem]) -> Problem:
    first = group[0]
    if len(group) == 1 or first.check is None:
        return first
    named = ', '.join(each.host for each in group[:_NAMED_MAX])
    more = '' if len(group) <= _NAMED_MAX else ', …'
    return Problem(
        first.alert,
        f'{len(group)} hosts ({named}{more}) have nodes with this finding: '
        f'{first.check.meaning}',
        first.check,
    )


def _of_agent(status: AgentStatus, now_s: float) -> Iterator[Problem]:
    if not status.turns(now_s):
        idle_s = now_s - status.turned_at_s
        yield Problem(
            Alert.MAIN_LOOP_STUCK,
            f'The main loop of this daemon has not turned for {idle_s:.0f} s; '
            f'what follows is as old.',
            host=status.me.home,
            phrase=f'the main loop of its daemon has not turned for '
            f'{idle_s:.0f} s',
        )
    if not status.has_lease(now_s):
        yield Problem(
            Alert.LEASE_LOST,
            'The lease of this daemon is not in force: it changes nothing, '
            'and others adopt its hosts.',
            catalogue.LEASE_LAPSED,
            status.me.home,
        )
    if status.heartbeat.failure is not None:
        yield Problem(
            Alert.BACKEND_FAILS,
            'The last request of this daemon to the coordination backend '
            'failed; the log says why.',
        )
    if status.lost_path is not None:
        yield Problem(
            Alert.HALF_ALIVE,
            f'This daemon has given its hosts away, because it does not reach '
            f'{status.lost_path} and others do.',
        )


def _of_peers(silent: Collection[Host]) -> Iterator[Problem]:
    for home in sorted(silent):
        yield Problem(
            Alert.DOWN,
            f'The port of the daemon of {home} does not answer: if it has '
            f'died, another daemon serves {home} when its lease has ended.',
        )


def _of_hosts(status: AgentStatus, now_s: float) -> Iterator[Problem]:
    unserved = status.unserved_here(now_s)
    # Without the lease this daemon does not hear what the others serve.
    is_member = status.has_lease(now_s)
    nobody = status.served_by_nobody() if is_member else frozenset()
    for host in sorted(nobody):
        why = f', and here {unserved[host]}' if host in unserved else ''
        for_s = status.unserved_for_s(host, now_s)
        yield Problem(
            Alert.HOST_UNSERVED,
            f'No daemon has the lock of host {host}{why}.',
            catalogue.HOST_NOT_SERVED,
            host,
            ': '.join(
                (f'not served for {for_s:.0f} s', *_phrases(unserved, host))
            ),
        )
    for host in sorted(unserved.keys() - nobody):
        yield Problem(
            Alert.HOST_UNSERVED,
            f'Host {host} is not served here: {unserved[host]}.',
            catalogue.HOST_NOT_SERVED,
            host,
            next(_phrases(unserved, host), ''),
            remedy='see the log of this daemon, where each worker that ended '
            'has written why',
        )


def _phrases(unserved: Mapping[Host, str], host: Host) -> Iterator[str]:
    """Return why a host is not served here, for readers elsewhere."""
    if host in unserved:
        yield unserved[host].replace('this daemon', 'its daemon')


def _of_pool(status: AgentStatus) -> Iterator[Problem]:
    other = sorted(
        member.home
        for member in status.members()
        if member.ring not in ('', status.ring.digest)
    )
    if other:
        yield Problem(
            Alert.RING_DISAGREEMENT,
            f'The daemons disagree about the ring, so that new nodes wait: '
            f'another one than here is at the daemon of {", ".join(other)}.',
            catalogue.RINGS_DIFFER,
        )
    for member in status.members():
        for path in member.failing_paths:
            yield Problem(
                Alert.PATH_FAILING,
                f'The daemon of {member.home} does not reach {path}.',
            )


def _of_workers(
    status: AgentStatus, figures: Mapping[Host, HostFigures], now_s: float
) -> Iterator[Problem]:
    for host in sorted(status.served_here(now_s) - figures.keys()):
        yield Problem(
            Alert.WORKER_SILENT,
            f'The worker of host {host} does not answer.',
            host=host,
            phrase='its worker does not answer',
        )
    for host, each in sorted(figures.items()):
        if each.oldest_dirty_s >= OLD_DIRTY_S:
            yield Problem(
                Alert.DIRTY_NODE,
                f'Host {host} has changes of {each.dirty} nodes that are not '
                f'in Placement, the oldest for {each.oldest_dirty_s:.0f} s.',
                catalogue.CHANGE_NOT_IN_PLACEMENT,
                host,
                f'changes not in Placement for {each.oldest_dirty_s:.0f} s',
            )


def _notes(
    status: AgentStatus, figures: Mapping[Host, HostFigures]
) -> Iterator[Problem]:
    for host in sorted(status.known - status.ring.hosts):
        why, check, phrase = _why_not_in_ring(status.services.get(host))
        yield Problem(
            Alert.HOST_NOT_IN_RING,
            f'Host {host} gets no nodes from the ring: {why}.',
            check,
            host,
            phrase,
        )
    for host, each in sorted(figures.items()):
        if each.without_class:
            yield Problem(
                Alert.NODE_WITHOUT_CLASS,
                f'Host {host} has {each.without_class} available nodes '
                f'without a resource class, which no build can get.',
                catalogue.NODE_WITHOUT_CLASS,
                host,
            )
        yield from _findings(host, each)


def _findings(host: Host, each: HostFigures) -> Iterator[Problem]:
    """Return what the worker of a host knows of its nodes, by check."""
    for name, count in sorted(each.findings.items()):
        check = _CHECKS.get(name)  # A later release may have other checks.
        if check is not None and check is not catalogue.NODE_WITHOUT_CLASS:
            nodes = 'node' if count == 1 else 'nodes'
            yield Problem(
                Alert.FINDING,
                f'Host {host} has {count} {nodes}: {check.meaning}',
                check,
                host,
            )


def _why_not_in_ring(
    service: ServiceFacts | None,
) -> tuple[str, catalogue.Check | None, str]:
    """Return why a host is not in the ring: sentence, check and phrase."""
    if service is None:
        return (
            'no worker has read its Service in Nova yet',
            None,
            'its Service in Nova is not read yet',
        )
    if not service.exists:
        return (
            'Nova has no Service record of it',
            catalogue.HOST_WITHOUT_SERVICE,
            NO_SERVICE,
        )
    if service.disabled:
        return (
            'it is disabled in Nova; "openstack compute service list --long" '
            'says why, and "ironic-computectl host undrain" ends a drain',
            None,
            DISABLED,
        )
    return (
        'it is mapped to no cell in Nova',
        catalogue.HOST_NOT_MAPPED,
        NOT_MAPPED,
    )
