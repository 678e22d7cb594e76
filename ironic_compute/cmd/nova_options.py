# SPDX-License-Identifier: Apache-2.0
"""Options of Nova that an agent reads, without loading all others.

Nova's own definitions come with libraries for Keystone, Barbican and caches,
some 15 MiB of memory. So this module repeats the few that an agent needs; a
test compares them with those of Nova.

A value may refer to any other option of Nova, such as ``$my_ip``. If nova.conf
has such a value for an option of the agent, all definitions are loaded.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oslo_config import cfg

from ironic_compute.errors import UNKNOWN_REFERENCE

OPTS: Mapping[str | None, Sequence[Any]] = {
    None: (
        cfg.HostDomainOpt('host', default=socket.gethostname()),
        cfg.IntOpt('report_interval', default=10),
        cfg.IntOpt('service_down_time', default=60),
    ),
    'ironic': (
        cfg.StrOpt(
            'conductor_group',
            deprecated_name='partition_key',
            mutable=True,
            max_length=255,
            regex=r'^[a-zA-Z0-9_.-]*$',
        ),
        cfg.StrOpt('shard', max_length=255, regex=r'^[a-zA-Z0-9_.-]+$'),
    ),
}


def register_opts(conf: Any, read: Callable[[Any], None]) -> None:
    """Register Nova's options, all of them if a value refers to another one.

    :param conf: oslo.config's global object, because Nova registers its
        options there
    :param read: registers all other options of the agent on an object, and
        reads the configuration into it
    :raises cfg.Error: the configuration cannot be read
    """
    if _refers_to_others(read):
        import nova.conf  # noqa: F401 - it registers on the global object
    else:
        _register_copies(conf)


def _register_copies(conf: Any) -> None:
    for group, options in OPTS.items():
        conf.register_opts(options, group=group)


def _refers_to_others(read: Callable[[Any], None]) -> bool:
    trial = cfg.ConfigOpts()
    _register_copies(trial)
    try:
        read(trial)
    except UNKNOWN_REFERENCE:
        return True  # In an option of the command line, such as log_file.
    return _has_unknown_reference(trial)


def _has_unknown_reference(options: Mapping[str, Any]) -> bool:
    """Return whether a value refers to an option that is not registered."""
    for name in options:
        try:
            value = options[name]
        except UNKNOWN_REFERENCE:
            return True
        except (ValueError, RecursionError):
            continue  # Whoever reads it raises the error.
        if isinstance(value, Mapping) and _has_unknown_reference(value):
            return True
    return False
