# SPDX-License-Identifier: Apache-2.0
"""The status page: the pool at one look, as HTML that needs no script.

The script in ``web/page.js`` only fetches the page again and again. Every
name comes from other machines and is escaped by the template; the page loads
nothing but the two files beside it, and `POLICY` has the browser hold it to
that.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import jinja2

from hashring.agent_status import AgentStatus
from hashring.group import Member
from hashring.paths import Path
from hashring.ring import Host
from ironic_compute.agent_port import figures, problems
from ironic_compute.agent_port.peers import is_reachable
from ironic_compute.agent_port.state import PATHS, utc
from ironic_compute.journal.moves import Move

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
WEB = pathlib.Path(__file__).parent / 'web'
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


@dataclasses.dataclass(frozen=True, slots=True)
class HostRow:
    """One row of the table of hosts."""

    host: Host
    server: Member | None
    """The daemon that has the lock of the host."""
    is_here: bool
    trouble: str | None
    """Why the host is not served here, if it should be."""
    is_in_ring: bool
    figures: figures.HostFigures | None
    """None if the daemon of this page does not know them."""
    share: int | None
    """The number of nodes that the ring gives to the host, if known."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemberRow:
    """One row of the table of daemons: a member of the group."""

    home: Host
    member: Member
    is_me: bool
    agrees: bool | None
    """Whether it has the same ring; None: it has published none."""
    url: str
    """Of its status page; '' if this machine cannot reach it."""
    paths: tuple[tuple[Path, bool | None], ...]
    """Each service, and whether the daemon reaches it; None: not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class GoneRow:
    """One row of the table of daemons: the host of one that is gone."""

    home: Host
    server: Member | None
    """The daemon that has the lock of the host now."""
    member: None = None


def render(
    status: AgentStatus,
    known: Mapping[Host, figures.HostFigures],
    now_s: float,
    moves: Sequence[Move] = (),
    silent: Collection[Host] = (),
) -> str:
    """Return the page as HTML.

    :param known: the figures of the hosts whose worker has answered
    :param moves: the newest moves of the pool, as far as known
    :param silent: the home hosts of daemons whose port does not answer
    """
    found = problems.find_problems(status, known, now_s, silent)
    since_s = status.agreed_since_s
    return _template().render(
        status=status,
        problems=[each for each in found if not each.is_note],
        notes=problems.merge_findings(e for e in found if e.is_note),
        has_lease=status.has_lease(now_s),
        heartbeat_age_s=status.heartbeat_age_s(now_s),
        agreed_for_s=None if since_s is None else now_s - since_s,
        hosts=[*_host_rows(status, known, now_s)],
        daemons=_daemon_rows(status),
        gone_count=len(status.gone_homes()),
        paths=PATHS,
        totals=_totals(known),
        is_whole=known.keys() >= status.known,
        moves=moves,
    )


def load(names: Iterable[str]) -> None:
    """Read the template and what the page loads, unless that was done.

    They fit the code of their own release alone, and an upgrade of the package
    may replace them before the page is first asked for.

    :param names: those of the files that the page loads
    """
    _template()
    for name in names:
        asset(name)


@functools.cache
def asset(name: str) -> bytes:
    """Return a file that the page loads.

    :param name: its name, which is not from a request
    """
    return WEB.joinpath(name).read_bytes()


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters['duration'] = duration
    environment.filters['utc'] = lambda at_s: utc(at_s).replace('T', ' ')
    environment.filters['number'] = lambda value: f'{value:,}'
    return environment.get_template('page.html')


def duration(seconds: float) -> str:
    """Return a duration as a person says it."""
    if seconds < 2 * _MINUTE_S:
        return f'{seconds:.0f} s'
    if seconds < 2 * _HOUR_S:
        return f'{seconds / _MINUTE_S:.0f} min'
    if seconds < 2 * _DAY_S:
        return f'{seconds / _HOUR_S:.0f} h'
    return f'{seconds / _DAY_S:.0f} days'


def _host_rows(
    status: AgentStatus,
    known: Mapping[Host, figures.HostFigures],
    now_s: float,
) -> Iterator[HostRow]:
    unserved, here = status.unserved_here(now_s), status.served_here(now_s)
    hosts = status.known | here | unserved.keys()
    # A share is known only if all nodes of the pool are.
    is_whole = known.keys() >= status.known
    shares = figures.ring_shares(known) if is_whole else {}
    for host in sorted(hosts):
        yield HostRow(
            host=host,
            server=status.served_by(host),
            is_here=host in here,
            trouble=unserved.get(host),
            is_in_ring=host in status.ring.hosts,
            figures=known.get(host),
            share=shares.get(host, 0) if is_whole else None,
        )


def _daemon_rows(status: AgentStatus) -> list[MemberRow | GoneRow]:
    """Return the daemons in the order of their names, so that rows stay."""
    gone = (
        GoneRow(home, status.served_by(home)) for home in status.gone_homes()
    )
    rows: list[MemberRow | GoneRow] = [*_member_rows(status), *gone]
    return sorted(rows, key=lambda row: row.home)


def _member_rows(status: AgentStatus) -> Iterator[MemberRow]:
    machine = status.me.machine
    for member in status.members():
        yield MemberRow(
            home=member.home,
            member=member,
            is_me=member.boot == status.me.boot,
            agrees=member.ring == status.ring.digest if member.ring else None,
            url=member.page if is_reachable(member, machine) else '',
            paths=tuple((path, _reaches(member, path)) for path in PATHS),
        )


def _reaches(member: Member, path: Path) -> bool | None:
    if path in member.failing_paths:
        return False
    return True if path in member.working_paths else None


def _totals(
    known: Mapping[Host, figures.HostFigures],
) -> figures.HostFigures:
    return figures.HostFigures(
        nodes=sum(each.nodes for each in known.values()),
        servers=sum(each.servers for each in known.values()),
        dirty=sum(each.dirty for each in known.values()),
    )
