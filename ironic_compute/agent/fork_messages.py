# SPDX-License-Identifier: Apache-2.0
"""Messages between an agent and its fork server, over one pair of sockets.

The fork server sends ``READY`` once it has loaded Nova. The agent then sends
``FORK`` with the worker's ends of its pipes, and the new worker itself answers
with ``Forked``. The agent sends one request at a time. A fork server that
cannot answer ends; it sends no errors.
"""

import dataclasses
import json
import socket

READY = b'ready'
FORK = b'fork'
MAX_BYTES = 4096
FDS_MAX = 3
"""The most file descriptors that come with a request."""


@dataclasses.dataclass(frozen=True, slots=True)
class Forked:
    """Answer of a new worker, which is a child of the agent by then."""

    pid: int
    metrics_fd: int | None
    """The number, in the worker, of its end of the metrics channel."""


def make_sockets() -> tuple[socket.socket, socket.socket]:
    """Return the agent's end and the fork server's end.

    :raises OSError: the process has too many open files
    """
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encode_forked(forked: Forked) -> bytes:
    """Return an answer as a message."""
    return json.dumps(dataclasses.asdict(forked)).encode()


def decode_forked(message: bytes) -> Forked:
    """Read a message made by :func:`encode_forked`.

    :raises ValueError: it is none
    """
    try:
        raw = json.loads(message)
        return Forked(int(raw['pid']), raw['metrics_fd'])
    except (KeyError, TypeError) as exc:
        raise ValueError(f'unknown answer {message!r}') from exc
