# SPDX-License-Identifier: Apache-2.0
"""The terminal's output: one line for each step, with its duration."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

# The start time is passed on in the environment, because the program continues
# in another Python process.
_STARTED_S = float(
    os.environ.setdefault(
        'IRONIC_COMPUTE_CLOUD_STARTED', str(time.monotonic())
    )
)
_REMINDER_S = 20.0
T = TypeVar('T')


class CloudError(Exception):
    """A check failed; the message is one sentence with the fault."""


def elapsed_s() -> float:
    """Return the seconds since the program was started."""
    return time.monotonic() - _STARTED_S


def print_line(line: str) -> None:
    """Print a line with the seconds since the start."""
    print(f'[{elapsed_s():6.1f} s] {line}', flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Print the begin of a step, and its duration at the end.

    A long step prints a line from time to time.
    """
    print_line(f'{what} …')
    begun_s = time.monotonic()
    over = threading.Event()
    threading.Thread(
        target=_remind, args=(what, begun_s, over), daemon=True
    ).start()
    try:
        yield
    finally:
        over.set()
    print_line(f'{what}: done in {time.monotonic() - begun_s:.1f} s')


def _remind(what: str, begun_s: float, over: threading.Event) -> None:
    while not over.wait(_REMINDER_S):
        print_line(f'{what}: {time.monotonic() - begun_s:.0f} s so far')


def wait_until(
    what: str,
    check: Callable[[], T],
    timeout_s: float,
    interval_s: float = 0.5,
) -> T:
    """Call ``check`` until it returns a true value; return that.

    :raises CloudError: it did not in time; the message has ``what``
    """
    deadline_s = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline_s:
        try:
            result = check()
            if result:
                return result
            last = result
        except CloudError:
            raise
        # A service that is still starting may raise an error.
        except Exception as exc:
            last = exc
        time.sleep(interval_s)
    raise CloudError(f'{what}: not within {timeout_s:g} s (last: {last})')


def expect(holds: bool, what: str) -> None:
    """Raise unless a condition holds.

    :param what: the error message: the state that was found instead
    :raises CloudError: the condition does not hold
    """
    if not holds:
        raise CloudError(what)


def fail(exc: Exception) -> int:
    """Print the reason of the end; return the exit status."""
    print(f'cloud: {exc}', file=sys.stderr)
    return 1
