# SPDX-License-Identifier: Apache-2.0
"""Registers the options of all packages and finds the configuration files.

Every console script and the worker process read their configuration through
this module.
"""

import os
from typing import Any

from oslo_config import cfg

import hashring.opts
import resource_tracker.opts
from ironic_compute import opts

PROG = 'ironic-compute'

OWN_CONFIG = '/etc/ironic-compute/ironic-compute.conf'


def register_opts(conf: Any) -> None:
    """Register the options of all three packages."""
    for package in (hashring, resource_tracker):
        package.opts.register_opts(conf)
    opts.register_opts(conf)


def default_config_files() -> list[str]:
    """Return the files that are read without ``--config-file``."""
    found: list[str] = cfg.find_config_files(project='nova', prog=PROG)
    return [*found, *([OWN_CONFIG] if os.path.exists(OWN_CONFIG) else [])]
