# SPDX-License-Identifier: Apache-2.0
"""The options that Nova, Ironic, Placement and this project have."""

import functools
import importlib
import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

import keystoneauth1.loading
import oslo_concurrency.opts
import oslo_log._options
import oslo_messaging.opts
import oslo_reports.opts
import pytest

import hashring.opts
import ironic_compute.opts
import resource_tracker.opts

Registry = dict[str, set[str]]


def _registry(lists: list[tuple[Any, Any]]) -> Registry:
    found: Registry = {}
    for group, options in lists:
        name = getattr(group, 'name', group) or 'DEFAULT'
        found.setdefault(str(name), set()).update(o.name for o in options)
        found[str(name)] |= {option.dest for option in options}
    return found


def _oslo() -> list[tuple[Any, Any]]:
    return [
        *oslo_messaging.opts.list_opts(),
        *oslo_concurrency.opts.list_opts(),
        *oslo_log._options.list_opts(),
        *oslo_reports.opts.list_opts(),
    ]


@functools.cache
def of_the_daemon() -> Registry:
    """Return what nova.conf and ironic-compute.conf may contain."""
    nova = importlib.import_module('nova.conf.opts')
    own = (hashring.opts, ironic_compute.opts, resource_tracker.opts)
    registry = _registry(
        [*nova.list_opts(), *_oslo(), *(p for o in own for p in o.list_opts())]
    )
    # The plugin that auth_type names adds these.
    plugin = keystoneauth1.loading.get_plugin_loader('password')
    registry['ironic'] |= {option.dest for option in plugin.get_options()}
    return registry


def unknown_to_ironic(names: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the options that Ironic lacks; skip if Ironic is missing.

    A process of its own reads them, because Ironic and Nova register different
    options with the same names.
    """
    if importlib.util.find_spec('ironic') is None:
        pytest.skip('Ironic is not installed')
    script = (
        'import sys, json\n'
        'from tests.unit.install import options\n'
        'registry = options.of_ironic()\n'
        'names = json.load(sys.stdin)\n'
        'wrong = [n for n in names if n[1] not in registry.get(n[0], ())]\n'
        'print(json.dumps(wrong))\n'
    )
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', script],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
        cwd=pathlib.Path(__file__).resolve().parents[3],
    )
    return [(group, name) for group, name in json.loads(done.stdout)]


def of_ironic() -> Registry:
    """Return what ironic.conf may contain; call it without Nova."""
    ironic = importlib.import_module('ironic.conf.opts')
    return _registry([*ironic.list_opts(), *_oslo()])
