# SPDX-License-Identifier: Apache-2.0
"""Reads Nova's Service records and host aggregates at intervals.

A thread of each worker uses it. It sends the state of the pool's hosts to the
agent, which builds the ring from it, and writes to the providers of the held
nodes whether the worker's host is disabled and in which aggregates it is.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import attrs
from oslo_log import log as logging

from hashring.clock import Clock
from hashring.ring import Host
from hashring.workers import ServiceFacts
from ironic_compute.pool.host_aggregates import HostAggregates
from ironic_compute.pool.services import PollInterval, ServiceDirectory
from ironic_compute.pool.view import PoolView

LOG = logging.getLogger(__name__)


@attrs.define(eq=False, repr=False, slots=False)
class ServiceWatcher:
    """Reads the Service records and host aggregates; one thread calls it.

    :param host: the worker's own host
    :param send_facts: sends the state of the pool's hosts to the agent
    :param has_servers: returns whether the worker's host has servers
    :param update_host_status: takes ``disabled`` or ``aggregates`` of the
        worker's host as a keyword argument
    :param interval_s: seconds between two reads in a settled pool
    :param aggregates_interval_s: seconds between two reads of the host
        aggregates; 0: never read them
    """

    _host: Host
    _services: ServiceDirectory
    _pool: PoolView
    _clock: Clock
    _send_facts: Callable[[dict[Host, ServiceFacts]], None]
    _has_servers: Callable[[], bool]
    _update_host_status: Callable[..., None]
    _interval_s: float
    _aggregates_interval_s: float

    def __attrs_post_init__(self) -> None:
        self._aggregates = HostAggregates()
        self._poll = PollInterval(self._interval_s)
        self._aggregates_read_s = -math.inf

    def try_read(self) -> float:
        """Read once, log an error, return the seconds until the next read."""
        try:
            all_mapped = self._read()
        except Exception as exc:
            LOG.warning(
                'Could not read the Service records of Nova and will '
                'try again: %(error)s',
                {'error': exc},
            )
            return self._poll.interval_s
        agreed = self._pool.ring_status().agreed
        return self._poll.next_s(is_settled=all_mapped and agreed)

    def _read(self) -> bool:
        """Read once; return whether all hosts with a record are mapped."""
        self._services.read_records()
        facts = self._services.facts(self._pool.known or (self._host,))
        own: Any = self._services.find_record(self._host)
        if own is not None:
            self._update_host_status(disabled=bool(own.disabled))
        if self._host in facts:
            facts[self._host] = dataclasses.replace(
                facts[self._host], has_servers=self._has_servers()
            )
        self._send_facts(facts)
        self._read_aggregates()
        return all(each.mapped or not each.exists for each in facts.values())

    def _read_aggregates(self) -> None:
        """Read the host aggregates if their own, longer interval is over."""
        now_s = self._clock.now_s()
        interval_s = self._aggregates_interval_s
        if interval_s and now_s - self._aggregates_read_s >= interval_s:
            self._aggregates_read_s = now_s
            aggregates = self._aggregates.read_for(
                self._host, self._pool.known
            )
            self._update_host_status(aggregates=aggregates)
