# SPDX-License-Identifier: Apache-2.0
"""Nova's ComputeManager in the simulation: the handlers that ours calls.

The order of requests is Nova's. Nova's own code runs where it needs no more
than simulated objects; the methods here replace the rest, and Nova's locks and
threads.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

from nova import exception as nova_exception
from nova.compute import build_results, task_states, vm_states
from nova.compute import manager as nova_manager

from ironic_compute import errors
from tests.simulation.faults import Unreachable
from tests.simulation.kernel import Lock
from tests.simulation.nova import UNSAVED

FAILURES = (
    Unreachable,
    errors.IronicComputeError,
    nova_exception.NovaException,
)
_GONE = (
    nova_exception.InstanceNotFound,
    nova_exception.UnexpectedDeletingTaskStateError,
)
_UNDECORATED = inspect.unwrap(
    nova_manager.ComputeManager._do_build_and_run_instance
)


class SimulatedNova(nova_manager.ComputeManager):  # type: ignore[misc]
    """Nova's ComputeManager, for one worker."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.share_manager = _NoShares()
        self.image_api = _Images()
        self._locks: dict[str, Lock] = {}

    def _lock(self, server: str) -> Lock:
        return self._locks.setdefault(server, Lock(self._worker.kernel))

    def _excuse(self, server: str, why: object) -> None:
        """Note why the build of a server may fail."""
        self._worker.world.excuse(
            server, why if isinstance(why, str) else repr(why)
        )

    # Builds

    def build_and_run_instance(
        self, context: Any, instance: Any, **request: Any
    ) -> None:
        """Build in another thread."""
        self._worker.spawn(lambda: self._run_build(context, instance, request))

    def _run_build(self, context: Any, instance: Any, request: Any) -> None:
        """``_locked_do_build_and_run_instance``."""
        with self._lock(instance.uuid), self._tolerant(instance.uuid):
            result = build_results.FAILED
            with self._tolerant(instance.uuid):
                result = self._do_build_and_run_instance(
                    context, instance, **request
                )
            if result == build_results.FAILED:
                self._note_unsaved(instance.uuid)
                self.reportclient.delete_allocation_for_instance(
                    context, instance.uuid, force=True
                )
                self._build_failed(request['node'])
            elif result == build_results.ACTIVE:
                self._build_succeeded(request['node'])

    def _note_unsaved(self, server: str) -> None:
        """Note that Nova drops the allocation of a server without an error.

        If nova-conductor was not reached, the record of the server does not
        say that its build has failed.
        """
        record = self._worker.world.nova.servers[server]
        if record.vm_state != vm_states.ERROR:
            self._excuse(server, UNSAVED)

    @contextlib.contextmanager
    def _tolerant(self, server: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as exc:
            self._excuse(server, exc)
            self._worker.world.log(f'{self._worker.name}: {server}: {exc!r}')

    def _do_build_and_run_instance(
        self, context: Any, instance: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Nova's own method, and its decorator ``reverts_task_state``."""
        try:
            return _UNDECORATED(self, context, instance, *args, **kwargs)
        except nova_exception.UnexpectedTaskStateError:
            raise
        except FAILURES:
            with contextlib.suppress(*FAILURES):
                instance.task_state = None
                instance.save()
            raise

    def _build_and_run_instance(
        self, context: Any, instance: Any, *args: Any
    ) -> None:
        node, limits = args[6:8]
        try:
            with self.rt.instance_claim(context, instance, node, None, limits):
                self._build_resources_of(instance)
                with self._undone_by_shutdown(context, instance):
                    instance.task_state = task_states.SPAWNING
                    instance.save((task_states.BLOCK_DEVICE_MAPPING,))
                    self.driver.spawn(context, instance)
        except (*_GONE, nova_exception.BuildAbortException):
            raise
        except nova_exception.ComputeResourcesUnavailable as exc:
            if isinstance(exc.__cause__, errors.IronicUnavailable):
                self._excuse(instance.uuid, exc)
            raise nova_exception.RescheduledException(
                instance_uuid=instance.uuid, reason=str(exc)
            ) from exc
        except Exception as exc:
            self._excuse(instance.uuid, exc)
            raise nova_exception.RescheduledException(
                instance_uuid=instance.uuid, reason=str(exc)
            ) from exc
        self._save_active(instance, task_states.SPAWNING)

    def _build_resources_of(self, instance: Any) -> None:
        """``_build_resources``, before its block."""
        instance.task_state = task_states.NETWORKING
        instance.save((None,))
        try:
            self.driver.prepare_for_spawn(instance)
            instance.task_state = task_states.BLOCK_DEVICE_MAPPING
            instance.save()
        except (*_GONE, nova_exception.ComputeResourcesUnavailable):
            self.driver.failed_spawn_cleanup(instance)
            raise
        except Exception as exc:
            self._excuse(instance.uuid, exc)
            self.driver.failed_spawn_cleanup(instance)
            raise nova_exception.BuildAbortException(
                instance_uuid=instance.uuid, reason=str(exc)
            ) from exc

    @contextlib.contextmanager
    def _undone_by_shutdown(
        self, context: Any, instance: Any
    ) -> Iterator[None]:
        """``_build_resources``: after an error in its block."""
        try:
            yield
        except Exception as exc:
            try:
                self.driver.free_node_of(instance)
            except Exception as failed:
                self._excuse(instance.uuid, failed)
                raise nova_exception.BuildAbortException(
                    instance_uuid=instance.uuid, reason=str(exc)
                ) from failed
            raise

    def _save_active(self, instance: Any, former: str) -> None:
        instance.vm_state, instance.task_state = vm_states.ACTIVE, None
        try:
            instance.save((former,))
        except Unreachable as exc:
            # Nova then fails the build although the row may be ACTIVE.
            self._excuse(instance.uuid, exc)
            record = self._worker.world.nova.servers[instance.uuid]
            record.was_active, record.is_given_up = False, True
            raise

    def _cleanup_allocated_networks(
        self, context: Any, instance: Any, requested_networks: Any
    ) -> None:
        """Save the Instance as it is, as Nova does."""
        with contextlib.suppress(nova_exception.InstanceNotFound):
            instance.save()

    def _cleanup_volumes(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: no server has volumes."""

    _terminate_volume_connections = _cleanup_volumes

    # Tasks

    def _notify_about_instance_usage(self, *args: Any, **_: Any) -> None:
        """Do nothing: no part of it concerns a task."""

    _notify_instance_rebuild_error = _notify_about_instance_usage
    _delete_dangling_bdms = _notify_about_instance_usage
    _get_request_group_mapping = _notify_about_instance_usage
    _set_migration_status = _notify_about_instance_usage
    _update_scheduler_instance_info = _notify_about_instance_usage
    _delete_scheduler_instance_info = _notify_about_instance_usage

    def _get_instance_block_device_info(self, *_: Any, **__: Any) -> Any:
        return {}

    _prep_block_device = _get_instance_block_device_info

    def _get_accel_info(self, *_: Any) -> list[Any]:
        return []

    def _do_rebuild_instance(
        self,
        context: Any,
        instance: Any,
        orig_image_ref: Any,
        image_meta: Any,
        *rest: Any,
    ) -> None:
        """Nova's method, with the steps that concern a bare metal server."""
        former, bdms = instance.vm_state, rest[3]
        instance.power_state = self._get_power_state(instance)
        instance.task_state = task_states.REBUILDING
        instance.save(expected_task_state=[task_states.REBUILDING])
        self.driver.rebuild(context, instance, image_meta, bdms, False)
        self._update_instance_after_spawn(instance)
        instance.save(expected_task_state=[task_states.REBUILD_SPAWNING])
        if former == vm_states.STOPPED:
            instance.vm_state = vm_states.ACTIVE
            instance.task_state = task_states.POWERING_OFF
            instance.save()
            self.stop_instance(context, instance, False)

    # Deletes

    def terminate_instance(
        self, context: Any, instance: Any, bdms: Any
    ) -> None:
        with (
            self._lock(instance.uuid),
            contextlib.suppress(nova_exception.InstanceNotFound),
        ):
            try:
                self._delete_instance(context, instance, bdms)
            except nova_exception.InstanceNotFound:
                raise
            except FAILURES:
                instance.vm_state, instance.task_state = vm_states.ERROR, None
                instance.save()
                raise

    def _delete_instance(self, context: Any, instance: Any, bdms: Any) -> None:
        self.driver.free_node_of(instance)
        self._worker.call_neutron()
        instance.vm_state, instance.task_state = vm_states.DELETED, None
        instance.save()
        if instance.node is not None:
            self.rt.update_usage(context, instance, instance.node)
        self.reportclient.delete_allocation_for_instance(
            context, instance.uuid, force=True
        )
        instance.destroy()


class _NoShares:
    """Nova's ShareManager; no server has shares."""

    def get_share_info(self, *_: Any, **__: Any) -> '_NoShares':
        return self

    def activate_all(self, *_: Any) -> None:
        """Do nothing."""

    deactivate_all = mount_all = umount_all = activate_all


class _Images:
    """Nova's client of Glance; an image has no properties."""

    def get(self, context: Any, image: str, **_: Any) -> dict[str, Any]:
        return {}
