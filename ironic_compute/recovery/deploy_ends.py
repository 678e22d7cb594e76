# SPDX-License-Identifier: Apache-2.0
"""Reports the end of an interrupted deploy, as Nova's manager would have done.

Nova sends a notification at the end of a build, rebuild or unshelve, and ends
the event of the server's action. The worker that began the deploy is gone, so
the one that has waited for the deploy does both. Otherwise Designate makes no
records for the server, a billing system does not know that it runs, and the
user sees an event without an end.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from nova import objects, rpc
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova.objects import fields
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

_SERVICE = 'compute'
_END = fields.NotificationPhase.END


@attrs.frozen
class _Kind:
    """What Nova's manager reports at the end of one kind of deploy.

    :param name: of the unversioned notification
    :param method: of Nova's manager, after which the event is named
    :param send: sends the versioned notification
    :param extra: further fields of the unversioned notification
    """

    name: str
    method: str
    send: Callable[..., None]
    extra: Mapping[str, str] = {}


def report_end(context: Any, instance: Any, former: str) -> None:
    """Send the notifications of the end of a deploy, and end its event.

    The server is saved before. Raises nothing, because no later round would
    repeat it.

    :param context: has the id of the request for the deploy
    :param former: the VM state of the server before the deploy
    """
    kind = _kind_after(former)
    for report in (_notify, _notify_versioned, _end_event):
        try:
            report(context, instance, kind)
        except Exception as exc:
            LOG.info(
                'Could not tell others that the %(name)s of server '
                '%(server)s has ended: %(error)s',
                {'name': kind.name, 'server': instance.uuid, 'error': exc},
            )


def _kind_after(former: str) -> _Kind:
    match former:
        case vm_states.BUILDING:
            return _Kind(
                'create',
                '_do_build_and_run_instance',
                compute_utils.notify_about_instance_create,
                {'message': 'Success'},
            )
        case vm_states.SHELVED_OFFLOADED:
            send = functools.partial(
                compute_utils.notify_about_instance_action,
                action=fields.NotificationAction.UNSHELVE,
            )
            return _Kind('unshelve', 'unshelve_instance', send)
        case _:
            return _Kind(
                'rebuild',
                'rebuild_instance',
                compute_utils.notify_about_instance_rebuild,
            )


def _notify(context: Any, instance: Any, kind: _Kind) -> None:
    compute_utils.notify_about_instance_usage(
        rpc.get_notifier(_SERVICE, instance.host),
        context,
        instance,
        f'{kind.name}.end',
        network_info=instance.get_network_info(),
        extra_usage_info=kind.extra,
    )


def _notify_versioned(context: Any, instance: Any, kind: _Kind) -> None:
    kind.send(context, instance, instance.host, phase=_END)


def _end_event(context: Any, instance: Any, kind: _Kind) -> None:
    """End the event of the action; fails if there is a newer action."""
    objects.InstanceActionEvent.event_finish(
        context,
        instance.uuid,
        f'{_SERVICE}_{kind.method}',
        want_result=False,
    )
