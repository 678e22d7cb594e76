# SPDX-License-Identifier: Apache-2.0
"""The console scripts: daemon, worker, ironic-computectl, status check."""

import importlib.metadata
import importlib.util
import pathlib
import sys
import warnings

from ironic_compute.agent import exit_codes

# Nova's libraries import eventlet, so no operator can do anything about its
# warning; it would precede the output of every command. Python's own options
# about warnings take precedence.
if not sys.warnoptions:
    warnings.filterwarnings('ignore', message=r'\s*Eventlet is deprecated')

_OTHER = 'hashring'
"""A distribution on PyPI with a package of the same name as one of ours."""


def find_other_hashring() -> pathlib.Path | None:
    """Return the folder that the other distribution shares with us, if any.

    pip overwrites files of one distribution with those of another without a
    word. A copy in a folder that Python searches later does no harm.
    """
    spec = importlib.util.find_spec(_OTHER)
    folders = spec.submodule_search_locations if spec is not None else None
    ours = {pathlib.Path(folder).resolve() for folder in folders or ()}
    for distribution in importlib.metadata.distributions(name=_OTHER):
        theirs = pathlib.Path(str(distribution.locate_file(_OTHER))).resolve()
        if theirs in ours:
            return theirs
    return None


def _exit_beside_other_hashring() -> None:
    """Exit before a module of the wrong package is imported."""
    if (folder := find_other_hashring()) is not None:
        sentence = (
            f'the distribution {_OTHER} from PyPI, which is another project, '
            f'has its files in {folder}, where this daemon has its own; '
            f'run "pip uninstall {_OTHER}", then install ironic-compute again '
            'with --force-reinstall --no-deps, or use an environment of its '
            'own'
        )
        sys.exit(exit_codes.print_config_error(sentence))


_exit_beside_other_hashring()
