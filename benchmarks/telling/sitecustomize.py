# SPDX-License-Identifier: Apache-2.0
"""Python itself loads this into the compute processes that are measured.

oslo.messaging logs when a message leaves and when its answer arrives. Nova
has asked before the first, as its objects are written out then, and knows
after the second, when the thread that asked is awake and has read them; all
of that is the RPC's time. So each call tells when it begins and ends, and each
cast that there is one; of ours and of stock alike.

Imports nothing that Nova may want to patch before it is loaded.
"""

import functools
import importlib.abc
import importlib.machinery
import sys

_TOLD_OF = 'oslo_messaging.rpc.client'


class _Finder(importlib.abc.MetaPathFinder):
    """Changes one module when it is imported, and is gone then."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _TOLD_OF:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            tell(module._BaseCallContext)

        spec.loader.exec_module = load_and_change
        return spec


def tell(calling):
    """Have what a class of clients sends logged, and both ends of calls.

    :param calling: has ``call``, ``cast`` and ``target``, as oslo.messaging's
        contexts of calls
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
