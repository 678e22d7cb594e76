# SPDX-License-Identifier: Apache-2.0
"""Kills a worker before or after the n-th request that its build sends.

Python imports this module at its start, because the ``cuts`` scenario has its
folder in PYTHONPATH of the agents. It changes no code of the daemons: it
counts the requests that leave the process through requests and oslo.messaging
while a build is at work, and sends SIGKILL to its own process at the one that
the file in ``CHAOS_CUT`` names. Without that file it does nothing.
"""

import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import signal
import sys
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

# Methods of remote objects that only read.
_READS = ('get', '_get', 'refresh', 'obj_load', 'object_backport')
# Requests that the build does not send: a heartbeat, reads, a new token.
_OTHER_OBJECTS = ('Service',)
_SAFE_METHODS = ('GET', 'HEAD')


class Cut:
    """Counts the requests of a build, and ends the process at one of them.

    :param path: a JSON file with ``number`` of the request, ``side``, which is
        ``before`` or ``after``, and ``build``, which no other build has;
        another file beside it is written with the name of the request when the
        process ends
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._order: dict[str, Any] | None = None
        self._sent_count = 0

    def begin(self) -> None:
        """Count from here, because the message of a build has arrived."""
        self._order, self._sent_count = self._read_order(), 0

    def around(self, name: str, send: Callable[[], Any]) -> Any:
        """Send a request; the process may end before or after it."""
        if self._order is None:
            return send()
        with self._lock:
            self._sent_count += 1
            number = self._sent_count
        self._end_if(number, 'before', name)
        answer = send()
        self._end_if(number, 'after', name)
        return answer

    def _end_if(self, number: int, side: str, name: str) -> None:
        order = self._read_order()
        if order is None or order != self._order:
            return  # The build has ended; another one may come.
        if (order['number'], order['side']) == (number, side):
            self._path.rename(self._path.with_suffix('.done'))
            self._path.with_suffix('.fired').write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    def _read_order(self) -> dict[str, Any] | None:
        try:
            order: dict[str, Any] = json.loads(self._path.read_text())
        except (FileNotFoundError, ValueError):
            return None  # ValueError: the file is being written.
        return order


def http_name(
    method: str, url: str, services: Mapping[str, str]
) -> str | None:
    """Return the name of a request that changes something, or None.

    :param services: service name of each port
    """
    parts = urllib.parse.urlsplit(url)
    service = services.get(str(parts.port))
    if service in (None, 'keystone') or method in _SAFE_METHODS:
        return None
    words = [
        'ID' if len(word) == 36 and word.count('-') == 4 else word
        for word in parts.path.split('/')
    ]
    return f'{service} {method} {"/".join(words)}'


def rpc_name(method: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the name of an RPC that changes something, or None."""
    kind = arguments.get('objname') or _kind(arguments.get('objinst'))
    action = arguments.get('objmethod')
    if action is None:
        return None if method.startswith(_READS) else f'RPC {method}'
    if kind in _OTHER_OBJECTS or action.startswith(_READS):
        return None
    return f'conductor {kind}.{action}'


def _kind(instance: Any) -> str:
    return instance.obj_name() if hasattr(instance, 'obj_name') else ''


def _hook_requests(module: ModuleType, cut: Cut) -> None:
    services = json.loads(os.environ['CHAOS_CUT_SERVICES'])
    send = module.Session.send

    def counted(self: Any, request: Any, **more: Any) -> Any:
        name = http_name(request.method, request.url, services)
        act = lambda: send(self, request, **more)  # noqa: E731
        return act() if name is None else cut.around(name, act)

    module.Session.send = counted


def _hook_client(module: ModuleType, cut: Cut) -> None:
    def hook(kind: str) -> None:
        send = getattr(module._BaseCallContext, kind)

        def counted(self: Any, ctxt: Any, method: str, **more: Any) -> Any:
            name = rpc_name(method, more)
            act = lambda: send(self, ctxt, method, **more)  # noqa: E731
            return act() if name is None else cut.around(name, act)

        setattr(module._BaseCallContext, kind, counted)

    hook('call')
    hook('cast')


def _hook_dispatcher(module: ModuleType, cut: Cut) -> None:
    dispatch = module.RPCDispatcher._do_dispatch

    def watched(
        self: Any, endpoint: Any, method: str, ctxt: Any, args: Any
    ) -> Any:
        if method == 'build_and_run_instance':
            cut.begin()
        return dispatch(self, endpoint, method, ctxt, args)

    module.RPCDispatcher._do_dispatch = watched


_HOOKS = {
    'requests.sessions': _hook_requests,
    'oslo_messaging.rpc.client': _hook_client,
    'oslo_messaging.rpc.dispatcher': _hook_dispatcher,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Applies a hook right after the import of its module."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the usual spec, with a loader that applies the hook."""
        hook = _HOOKS.get(fullname)
        if hook is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_hook(module: ModuleType) -> None:
            execute(module)
            hook(module, self._cut)

        spec.loader.exec_module = execute_and_hook  # type: ignore[method-assign]
        return spec


if 'CHAOS_CUT' in os.environ:
    _path = pathlib.Path(os.environ['CHAOS_CUT'])
    sys.meta_path.insert(0, _Finder(Cut(_path)))
