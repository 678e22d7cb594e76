# SPDX-License-Identifier: Apache-2.0
"""How a worker ends, through Nova's own service of each series.

What stops a service in a process of its own, Nova's launcher upon SIGTERM,
does no more than to call ``stop``.
"""

import threading
import time
import types
import unittest
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.compute import task_states

from tests.functional import base, pool

# Far below the 45 s for which Nova 33 would sleep.
_SOON_S = 30.0


class _Slow:
    """An Ironic that answers requests of one kind when it is let."""

    def __init__(self, act: Any) -> None:
        self._act = act
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do what is asked for, late."""
        self.has_begun.set()
        assert self.may_end.wait(120.0)
        return self._act(*args, **kwargs)


class StoppingTest(pool.PoolTestCase):
    """Two hosts, one of which is stopped."""

    OPTIONS = types.MappingProxyType({'upkeep_interval_s': 600.0})

    def setUp(self) -> None:
        """Have the time for stopping that a worker has."""
        super().setUp()
        self.flags(graceful_shutdown_timeout=60, manager_shutdown_timeout=45)
        # Conductor and scheduler of Nova 33 would sleep as long afterwards.
        self.addCleanup(self.flags, manager_shutdown_timeout=0)
        self.context = nova_context.get_admin_context()
        self.stopping: list[threading.Thread] = []
        for worker in self.workers.values():
            # Nova's fixture would stop each worker again at the end.
            worker.kill = self._end_stopping

    def _end_stopping(self) -> None:
        for thread in self.stopping:
            thread.join(60.0)

    def _begin_stop(self, host: str) -> threading.Thread:
        """Stop a worker as SIGTERM does, beside the test."""
        thread = threading.Thread(target=self.workers[host].stop)
        self.stopping.append(thread)
        thread.start()
        return thread

    def _assert_ends(self, thread: threading.Thread) -> None:
        began_s = time.monotonic()
        thread.join(_SOON_S)
        self.assertLess(time.monotonic() - began_s, _SOON_S)
        self.assertFalse(thread.is_alive())

    def _receives(self, host: str) -> list[Any]:
        """Return the RPC servers that receive."""
        servers = self.workers[host].manager.rpc_gating.servers
        return [one for one in servers if one._server._started]

    def _boot_slowly(self) -> tuple[Any, str]:
        """Begin a build that Ironic does not end; return it and its host."""
        self.addCleanup(setattr, self.ironic, 'settle', self.ironic.settle)
        self.ironic.settle = lambda node: None  # type: ignore[method-assign]
        request = self._build_server(
            image_uuid=base.IMAGE_ID,
            flavor_id=self.flavor['id'],
            networks='none',
        )
        server = self.api.post_server({'server': request})
        self.until(
            lambda: [c for c in self.ironic.calls if c[0] == 'active'],
            'the deploy begun',
        )
        shown = self.api.get_server(server['id'])
        host = shown['OS-EXT-SRV-ATTR:host']
        self.addCleanup(self._end_deploys, host)
        return server, host

    def _end_deploys(self, host: str) -> None:
        """Let no build wait for ever that was left to another worker."""
        node_cache = self.components(host).node_cache
        for node in node_cache.list_nodes():
            self.ironic.change(node, provision_state='active')
            node_cache.update_facts(self.ironic.read_node(node))

    def test_idle_worker_ends_at_once(self) -> None:
        """An idle worker stops at once and receives no RPC any more."""
        self.assertNotEqual([], self._receives('c1'))
        self._assert_ends(self._begin_stop('c1'))
        self.assertEqual([], self._receives('c1'))
        self.assertEqual([], pool.TheCloud.left)

    @unittest.skipIf(
        base.NOVA_SERIES == 33, 'a build cannot be left within one process'
    )
    def test_worker_that_waits_for_a_deploy_ends_at_once(self) -> None:
        """A stopping worker leaves a deploy to the next worker."""
        _, host = self._boot_slowly()
        self._assert_ends(self._begin_stop(host))
        self.assertEqual([host], pool.TheCloud.left)

    def test_reboot_that_is_under_way_is_finished(self) -> None:
        """A stopping worker finishes a reboot that has begun."""
        server = self.boot(self.flavor)
        host = server['OS-EXT-SRV-ATTR:host']
        slow = _Slow(self.ironic.set_power_state)
        self.addCleanup(slow.may_end.set)
        self.ironic.set_power_state = slow  # type: ignore[method-assign]
        self.action(server, 'reboot', {'type': 'HARD'})
        self.assertTrue(slow.has_begun.wait(60.0))
        row = objects.Instance.get_by_uuid(self.context, server['id'])
        self.assertEqual(task_states.REBOOT_STARTED_HARD, row.task_state)
        thread = self._begin_stop(host)
        # Nova 34 stops the other one, for what its work needs, last.
        main = self.workers[host].manager.rpc_gating.servers[0]
        self.until(lambda: main not in self._receives(host), 'none received')
        thread.join(2.0)
        self.assertTrue(thread.is_alive())
        slow.may_end.set()
        self._assert_ends(thread)
        row.refresh()
        self.assertIsNone(row.task_state)
        self.assertEqual('active', row.vm_state)
        self.assertEqual([], pool.TheCloud.left)
