# SPDX-License-Identifier: Apache-2.0
"""Gives each process queues of its own in RabbitMQ.

With ``[oslo_messaging_rabbit] use_queue_manager``, which Kolla Ansible sets,
oslo.messaging names the queue of the answers after the machine, the program
and a counter. The counter begins anew for each process group. Each worker has
a process group of its own, so all workers of a machine would get the same
queue, and each of them some of the answers to another one.
"""

import oslo_messaging.opts
from oslo_config import cfg

_GROUP = 'oslo_messaging_rabbit'
_OPTION = 'use_queue_manager'


def use_random_names(conf: cfg.ConfigOpts) -> None:
    """Have oslo.messaging choose random names of queues, as by default.

    The caller calls it after the files were read, and before ``rpc.init``.
    """
    for group, options in oslo_messaging.opts.list_opts():
        if group == _GROUP:
            conf.register_opts(options, group=_GROUP)
    conf.set_override(_OPTION, False, group=_GROUP)
