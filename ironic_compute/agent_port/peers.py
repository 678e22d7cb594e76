# SPDX-License-Identifier: Apache-2.0
"""Figures of the hosts that other agents serve, read from their ports.

Only while somebody looks at the status page. An agent publishes the URL of its
port with its membership, unless the port is on a loopback address. What an
answer says counts for the hosts that its agent publishes to serve and for no
others. An answer that is late, malformed or missing leaves a host without
figures.
"""

import collections
import contextlib
import http.client
import ipaddress
import json
import threading
import urllib.parse
from collections.abc import Iterable, Mapping

from oslo_log import log as logging

from hashring.clock import Clock
from hashring.group import Member
from hashring.ring import Host
from ironic_compute.agent_port.figures import HostFigures

LOG = logging.getLogger(__name__)

PATH = '/api/v1/nodes'
# Seconds to wait for one agent, and for all of them together.
_PEER_MAX_S = 0.6
_ALL_MAX_S = 0.8
_THREADS_COUNT = 8
_ANSWER_MAX_BYTES = 1 << 20


def published_url(address: str, port: int, machine: str) -> str:
    """Return the URL of an agent's port for other machines.

    :param address: on which the port is served; may be a name
    :param machine: the name of this machine
    :returns: '' if other machines cannot reach it
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return '' if address == 'localhost' else f'http://{address}:{port}/'
    if ip.is_loopback:
        return ''
    if ip.is_unspecified:
        return f'http://{machine}:{port}/'
    return (
        f'http://[{ip}]:{port}/' if ip.version == 6 else f'http://{ip}:{port}/'
    )


def split_url(url: str) -> tuple[str, int] | None:
    """Return the machine and the port of a published URL.

    :returns: None if it is none
    """
    try:
        parts = urllib.parse.urlsplit(url)
        machine, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme != 'http' or not machine or not port:
        return None
    return machine, port


class PeerReader:
    """Reads the figures of other agents; any thread may call.

    Its threads are daemons: a name server that hangs must not keep the agent
    from its exit.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._places = threading.Semaphore(_THREADS_COUNT)

    def read(self, members: Iterable[Member]) -> dict[Host, HostFigures]:
        """Return the figures of all hosts that these agents serve.

        Blocks for less than a second, however many do not answer.
        """
        waiting = collections.deque(
            each for each in members if split_url(each.page) is not None
        )
        found: list[dict[Host, HostFigures]] = []
        ends_s = self._clock.now_s() + _ALL_MAX_S
        threads = [
            self._start(waiting, found)
            for _ in range(len(waiting))
            if self._places.acquire(blocking=False)
        ]
        for thread in threads:
            thread.join(max(ends_s - self._clock.now_s(), 0.0))
        waiting.clear()
        return {h: each for some in tuple(found) for h, each in some.items()}

    def _start(
        self,
        waiting: collections.deque[Member],
        found: list[dict[Host, HostFigures]],
    ) -> threading.Thread:
        def read_some() -> None:
            try:
                # Another thread may take the last one first.
                with contextlib.suppress(IndexError):
                    while True:
                        found.append(read_member(waiting.popleft()))
            finally:
                self._places.release()

        thread = threading.Thread(
            target=read_some, name='agent-port-peer', daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # The process has too many threads.
            self._places.release()
            raise
        return thread


def read_member(member: Member) -> dict[Host, HostFigures]:
    """Return the figures of the hosts that one agent serves; empty if none."""
    where = split_url(member.page)
    if where is None:
        return {}
    connection = http.client.HTTPConnection(*where, timeout=_PEER_MAX_S)
    try:
        connection.request('GET', PATH)
        answer = connection.getresponse()
        text = answer.read(_ANSWER_MAX_BYTES)
        if answer.status != http.HTTPStatus.OK:
            return {}
        return parse_answer(text, member.serving)
    # UnicodeError: no name of a machine can be as this one is.
    except (OSError, http.client.HTTPException, UnicodeError) as exc:
        LOG.debug(
            'The port of the daemon of %(home)s did not answer: %(why)r',
            {'home': member.home, 'why': exc},
        )
        return {}
    finally:
        connection.close()


def parse_answer(
    text: bytes, serving: Iterable[Host]
) -> dict[Host, HostFigures]:
    """Return the figures in an answer.

    :param serving: the hosts of which the agent may speak
    """
    allowed = frozenset(serving)
    try:
        rows = json.loads(text)
        found = {Host(str(row['host'])): _figures(row) for row in rows}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return {host: each for host, each in found.items() if host in allowed}


def _figures(row: Mapping[str, object]) -> HostFigures:
    moving, staying = row['moving'], row['staying']
    if not (isinstance(moving, dict) and isinstance(staying, dict)):
        raise TypeError('expected two objects')
    return HostFigures(
        nodes=_count(row['nodes']),
        servers=_count(row['servers']),
        without_class=_count(row['without_class']),
        moving={Host(host): _count(n) for host, n in moving.items()},
        staying={Host(host): _count(n) for host, n in staying.items()},
        dirty=_count(row['dirty']),
        oldest_dirty_s=float(str(row['oldest_dirty_s'])),
    )


def _count(value: object) -> int:
    return int(str(value))
