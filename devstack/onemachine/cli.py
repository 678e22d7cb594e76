# SPDX-License-Identifier: Apache-2.0
"""Runs a command of ``devstack/cloud`` in the Python that it needs."""

import argparse
import contextlib
import os
import pathlib
import sys
from collections.abc import Sequence

from onemachine import actions, packages, parser
from onemachine.layout import Layout
from onemachine.progress import CloudError, fail

_IN_VENV = 'IRONIC_COMPUTE_CLOUD_IN_VENV'
# These commands need no OpenStack, so they work before the installation.
_PLAIN = frozenset({'status', 'logs', 'down', 'reset', 'stop', 'kill'})
_PLAIN |= frozenset({'pause', 'resume'})
_MAKES_VENV = frozenset({'up', 'demo', 'scenario', 'chaos', 'tempest'})
_MAKES_VENV |= frozenset({'night'})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = parser.parser().parse_args(given)
    try:
        layout = Layout.of(
            pathlib.Path(arguments.state).resolve(), arguments.port_base
        )
        if arguments.command not in _PLAIN:
            _enter_venv(layout, arguments.command, given)
        with contextlib.suppress(BrokenPipeError):
            return _act(layout, arguments)
    except CloudError as exc:
        return fail(exc)
    except KeyboardInterrupt:
        return fail(CloudError('interrupted'))
    return 0


def _act(layout: Layout, arguments: argparse.Namespace) -> int:
    act = actions.ACTIONS[arguments.command]
    if arguments.command in _PLAIN:
        return act(layout, arguments) or 0
    from keystoneauth1.exceptions import ClientException
    from openstack.exceptions import SDKException

    try:
        return act(layout, arguments) or 0
    except (ClientException, SDKException) as exc:
        raise CloudError(f'OpenStack refused or is away: {exc}') from exc


def _enter_venv(layout: Layout, command: str, given: list[str]) -> None:
    """Replace this process by one with the Python of the cloud."""
    if os.environ.get(_IN_VENV) == str(layout.venv):
        return
    if command in _MAKES_VENV:
        packages.ensure_debian()
        packages.ensure_venv(layout)
    elif not (layout.venv / 'installed').exists():
        raise CloudError('there is no cloud yet; run: devstack/cloud up')
    os.environ[_IN_VENV] = str(layout.venv)
    python = layout.bin('python')
    os.execv(python, [python, os.path.abspath(sys.argv[0]), *given])  # noqa: S606
