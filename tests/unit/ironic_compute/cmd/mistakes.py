# SPDX-License-Identifier: Apache-2.0
"""Runs a console script with many wrong command lines and configurations.

``python mistakes.py SCRIPT`` imports the script's module once, reads the cases
as JSON from stdin, and forks a process for each case, because the import takes
a second and each case needs Nova's CONF as it is after the import.
"""

import importlib
import json
import os
import select
import signal
import sys
import tempfile
import traceback
from typing import Any, NoReturn

# Seconds after which a script counts as one that does not end: a busy machine
# may need many times the 10 s that an operator should wait at most.
LIMIT_S = 100.0

# Modules that a script imports late; a case must not pay for that.
_LATE = {
    'agent': ('ironic_compute.cmd.daemon',),
    'ctl': (
        *('nova.objects', 'nova.conductor.rpcapi', 'nova.utils'),
        'ironic_compute.nodes.placement_reports',
    ),
    'status': (),
}


def run(script: Any, arguments: list[str]) -> dict[str, Any]:
    """Run a script in a process of its own.

    :returns: ``status`` (None if it did not end in time), ``out``, ``err``
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            os.setsid()
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            _run_and_exit(script, arguments)
        is_ended = _wait(pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return {
            'status': status if is_ended else None,
            'out': out.read().decode(),
            'err': err.read().decode(),
        }


def _run_and_exit(script: Any, arguments: list[str]) -> NoReturn:
    status = 1
    try:
        status = script.main(arguments)
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(pid: int) -> bool:
    """Wait until a process ends; kill it and its children if it is late."""
    ended = os.pidfd_open(pid)
    is_ended = bool(select.select([ended], [], [], LIMIT_S)[0])
    os.close(ended)
    if not is_ended:
        os.killpg(pid, signal.SIGKILL)
    return is_ended


def main() -> None:
    """Run each case of stdin; print the results as JSON."""
    script = importlib.import_module(f'ironic_compute.cmd.{sys.argv[1]}')
    for name in _LATE[sys.argv[1]]:
        importlib.import_module(name)
    cases = json.load(sys.stdin)
    json.dump([run(script, arguments) for arguments in cases], sys.stdout)


if __name__ == '__main__':
    main()
