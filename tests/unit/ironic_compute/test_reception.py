# SPDX-License-Identifier: Apache-2.0
"""How a worker receives RPC: a thread for each message, one at a time."""

import oslo_messaging
from oslo_config import cfg

from ironic_compute import reception


def test_defaults_stand_when_nova_sets_its_own():
    """Whatever of oslo.messaging Nova changes in between, it registers."""
    conf = cfg.ConfigOpts()
    reception.set_defaults(conf)
    oslo_messaging.set_transport_defaults('nova')
    oslo_messaging.get_rpc_transport(conf, 'rabbit://nobody@127.0.0.1:1/')
    assert conf.executor_thread_pool_size == 1000
    assert conf.oslo_messaging_rabbit.rabbit_qos_prefetch_count == 1


def test_an_operators_value_wins():
    """What stands in nova.conf is not touched."""
    conf = cfg.ConfigOpts()
    reception.set_defaults(conf)
    conf([], default_config_files=[])
    conf.set_override('executor_thread_pool_size', 7)
    reception.set_defaults(conf)
    assert conf.executor_thread_pool_size == 7
