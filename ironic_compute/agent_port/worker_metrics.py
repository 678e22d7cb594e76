# SPDX-License-Identifier: Apache-2.0
"""How the agent gets the metrics of its workers: requests over a socket pair.

Each worker inherits one end of a pair of sockets. To read its metrics, a
thread of the agent sends it the write end of a new pipe; a thread of the
worker writes its metrics into that pipe and closes it. Each request has its
own pipe, so a late answer to one request is not read as that to the next. A
worker that is killed closes its ends, and one that is stopped answers too
late: then its metrics are missing. Without requests both threads sleep.

The agent's main thread makes and drops channels and never uses them.
"""

import array
import contextlib
import errno
import os
import posix
import re
import select
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping

from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host

LOG = logging.getLogger(__name__)

_CHUNK_BYTES = 65536
# The last line of each answer, a comment for Prometheus: a worker that was
# killed while it wrote has not written it.
_END = b'# EOF\n'
# After this time no agent waits for an answer any more.
_WRITE_MAX_S = 5.0
_PIPE_FULL_WAIT_S = 0.01
_FAMILY = re.compile(r'^(?=# HELP )', re.MULTILINE)


class MetricsChannel:
    """The agent's end of the connection to one worker; any thread may use it.

    The socket is closed when the last thread has dropped this object, because
    another file with the same number must not get a request.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        weakref.finalize(self, end.close)

    def request(self) -> int | None:
        """Request the metrics; return the pipe to read; never blocks.

        :returns: a file descriptor, which the caller closes; None if the
            worker has ended, or has not taken earlier requests
        """
        read_fd, write_fd = os.pipe()
        try:
            socket.send_fds(self._socket, [b'?'], [write_fd])
        except OSError:
            os.close(read_fd)
            return None
        finally:
            os.close(write_fd)
        return read_fd


def make_channel() -> tuple[MetricsChannel, socket.socket]:
    """Return the agent's end and the worker's end, which is to be inherited.

    :raises OSError: the process has too many open files
    """
    ours, theirs = socket.socketpair()
    return MetricsChannel(ours), theirs


def read_all(
    channels: Mapping[Host, MetricsChannel], clock: Clock, timeout_s: float
) -> dict[Host, str]:
    """Read the metrics of all workers at once; block ``timeout_s`` at most.

    :returns: host -> metrics in the text format of Prometheus, of the workers
        that have answered in time
    """
    found: dict[Host, bytearray] = {}
    ends_s = clock.now_s() + timeout_s
    with (
        selectors.DefaultSelector() as selector,
        contextlib.ExitStack() as fds,
    ):
        for host, channel in channels.items():
            fd = channel.request()
            if fd is not None:
                fds.callback(os.close, fd)
                selector.register(fd, selectors.EVENT_READ, host)
        while selector.get_map() and (left_s := ends_s - clock.now_s()) > 0:
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, _CHUNK_BYTES)
                found.setdefault(key.data, bytearray()).extend(chunk)
                if not chunk:
                    selector.unregister(key.fd)
    return {
        host: text.decode()
        for host, text in found.items()
        if text.endswith(_END)
    }


def merge(texts: Iterable[str]) -> str:
    """Return one text with the metrics of all texts, each family once.

    In the text format of Prometheus all lines of a family must be together.
    """
    families: dict[str, list[str]] = {}
    for text in texts:
        for family in _FAMILY.split(text.removesuffix(_END.decode())):
            first, _, rest = family.partition('\n')
            kind, _, samples = rest.partition('\n')
            name = ' '.join(first.split(' ', 3)[:3])
            lines = families.setdefault(name, [f'{first}\n{kind}\n'])
            lines.append(samples)
    families.pop('', None)
    return ''.join(line for lines in families.values() for line in lines)


# ---- in the worker


def answer_requests(
    fd: int, read_metrics: Callable[[], bytes], clock: Clock
) -> None:
    """Start the thread that answers the agent's requests; returns at once.

    :param fd: the inherited end of the pair of sockets
    :param read_metrics: returns the metrics in the text format of Prometheus
    """
    os.set_inheritable(fd, False)
    threading.Thread(
        target=_answer_all,
        args=(socket.socket(fileno=fd), read_metrics, clock),
        name='metrics',
        daemon=True,
    ).start()


def _answer_all(
    requests: socket.socket, read_metrics: Callable[[], bytes], clock: Clock
) -> None:
    while True:
        # Under eventlet a blocking read would stop every thread.
        select.select([requests], [], [])
        fds = _receive(requests)
        if fds is None:
            return
        for fd in fds:
            try:
                os.set_blocking(fd, False)
                _write(fd, read_metrics() + _END, clock)
            # Metrics must not end a thread that no one would start again.
            except Exception as exc:
                LOG.debug('Could not send metrics: %(why)r', {'why': exc})
            finally:
                os.close(fd)


def _receive(requests: socket.socket) -> 'array.array[int] | None':
    """Return the pipe of the next request; None if the agent has closed."""
    fds = array.array('i')
    try:
        text, ancillary, _, _ = requests.recvmsg(
            1, socket.CMSG_LEN(fds.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except BlockingIOError:
        return fds
    except OSError:
        return None
    for _, _, content in ancillary:
        fds.frombytes(content)
    return fds if text else None


def _write(fd: int, text: bytes, clock: Clock) -> None:
    """Write without blocking, because under eventlet all threads would wait.

    It waits without select, which takes no high number of a file descriptor.

    :raises OSError: the agent does not wait for the answer any more
    """
    ends_s = clock.now_s() + _WRITE_MAX_S
    while text and clock.now_s() < ends_s:
        try:
            # posix.write, because eventlet's os.write blocks.
            text = text[posix.write(fd, text) :]
        except OSError as exc:
            if exc.errno != errno.EAGAIN:
                raise
            clock.sleep(_PIPE_FULL_WAIT_S)
