# SPDX-License-Identifier: Apache-2.0
"""Logs the RPCs of a compute process; Python itself imports this module.

The log has a line before each call and after its end, and one for each cast,
for ours and stock alike. The time between the lines includes the encoding of
the arguments and the wait for the thread that reads the answer; both are part
of an RPC's duration.

The module imports nothing that Nova may patch before it is loaded.
"""

import functools
import importlib.abc
import importlib.machinery
import sys

_MODULE = 'oslo_messaging.rpc.client'


class _Finder(importlib.abc.MetaPathFinder):
    """Changes one module when it is imported; then removes itself."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            log_rpcs(module._BaseCallContext)

        spec.loader.exec_module = load_and_change
        return spec


def log_rpcs(calling):
    """Make a class of RPC clients log its calls and casts.

    :param calling: a class with ``call``, ``cast`` and ``target``, as
        oslo.messaging's call contexts have
    """
    import logging

    log = logging.getLogger('benchmarks.rpc')
    plain_call, plain_cast = calling.call, calling.cast

    @functools.wraps(plain_call)
    def call(self, ctxt, method, **kwargs):
        log.debug('RPC begins: %s %s', self.target.topic, method)
        try:
            return plain_call(self, ctxt, method, **kwargs)
        finally:
            log.debug('RPC ends: %s %s', self.target.topic, method)

    @functools.wraps(plain_cast)
    def cast(self, ctxt, method, **kwargs):
        log.debug('RPC cast: %s %s', self.target.topic, method)
        return plain_cast(self, ctxt, method, **kwargs)

    calling.call, calling.cast = call, cast


sys.meta_path.insert(0, _Finder())
