# SPDX-License-Identifier: Apache-2.0
"""Ironic's provision and power states, and what each means for Nova: a table.

Source: https://docs.openstack.org/ironic/latest/user/states.html and
``ironic.common.states``. A state that this table lacks is UNKNOWN: the node
takes no builds, and the state is logged once.
"""

import enum

from oslo_log import log as logging

LOG = logging.getLogger(__name__)
_logged: set[str] = set()


class Meaning(enum.Enum):
    """What a provision state means for Nova."""

    CAN_TAKE_A_BUILD = enum.auto()
    ON_ITS_WAY = enum.auto()
    """Ironic is deploying the node, and will end in success or failure."""
    IN_USE = enum.auto()
    """The node has an instance, which the target ``deleted`` removes."""
    FAILED = enum.auto()
    """A deploy or removal failed; the target ``deleted`` clears the node."""
    LEAVING = enum.auto()
    """Ironic is removing the instance, or is done and cleans the node."""
    OUT_OF_REACH = enum.auto()
    """Nova may neither build on the node nor clear it."""


_M = Meaning


class ProvisionState(enum.Enum):
    """Ironic's provision states, each with its meaning for Nova."""

    ENROLL = 'enroll', _M.OUT_OF_REACH  # Credentials not verified yet.
    VERIFYING = 'verifying', _M.OUT_OF_REACH  # Being verified.
    MANAGEABLE = 'manageable', _M.OUT_OF_REACH  # Out of use.
    AVAILABLE = 'available', _M.CAN_TAKE_A_BUILD  # Can be deployed.
    ACTIVE = 'active', _M.IN_USE  # Runs an instance.
    DEPLOY = 'deploy', _M.ON_ITS_WAY  # Ironic's target, never shown.
    DEPLOYWAIT = 'wait call-back', _M.ON_ITS_WAY  # Awaits the ramdisk.
    DEPLOYING = 'deploying', _M.ON_ITS_WAY  # Being deployed.
    DEPLOYFAIL = 'deploy failed', _M.FAILED  # Could not be deployed.
    DEPLOYDONE = 'deploy complete', _M.ON_ITS_WAY  # Not active yet.
    DEPLOYHOLD = 'deploy hold', _M.ON_ITS_WAY  # An operator holds the deploy.
    DELETING = 'deleting', _M.LEAVING  # The instance is being removed.
    DELETED = 'deleted', _M.LEAVING  # Ironic's target, never shown.
    CLEANING = 'cleaning', _M.LEAVING  # Being cleaned for the next instance.
    UNDEPLOY = 'undeploy', _M.LEAVING  # Ironic's target, never shown.
    CLEANWAIT = 'clean wait', _M.LEAVING  # Awaits the ramdisk.
    CLEANFAIL = 'clean failed', _M.LEAVING  # Could not be cleaned.
    CLEANHOLD = 'clean hold', _M.LEAVING  # An operator holds the cleaning.
    ERROR = 'error', _M.FAILED  # The instance could not be removed.
    REBUILD = 'rebuild', _M.ON_ITS_WAY  # Ironic's target, never shown.
    INSPECTING = 'inspecting', _M.OUT_OF_REACH  # Being inspected.
    INSPECTFAIL = 'inspect failed', _M.OUT_OF_REACH  # Could not be inspected.
    INSPECTWAIT = 'inspect wait', _M.OUT_OF_REACH  # Awaits the inspector.
    ADOPTING = 'adopting', _M.OUT_OF_REACH  # Taken over with its instance.
    ADOPTFAIL = 'adopt failed', _M.OUT_OF_REACH  # Could not be taken over.
    RESCUE = 'rescue', _M.IN_USE  # Runs a rescue ramdisk.
    RESCUEFAIL = 'rescue failed', _M.IN_USE  # Could not be rescued.
    RESCUEWAIT = 'rescue wait', _M.IN_USE  # Awaits the rescue ramdisk.
    RESCUING = 'rescuing', _M.IN_USE  # Being rescued.
    UNRESCUEFAIL = 'unrescue failed', _M.IN_USE  # Could not end the rescue.
    UNRESCUING = 'unrescuing', _M.IN_USE  # The rescue is being ended.
    SERVICE = 'service', _M.IN_USE  # Ironic's target, never shown.
    SERVICING = 'servicing', _M.IN_USE  # Serviced with its instance.
    SERVICEWAIT = 'service wait', _M.IN_USE  # Awaits the ramdisk.
    SERVICEFAIL = 'service failed', _M.IN_USE  # Could not be serviced.
    SERVICEHOLD = 'service hold', _M.IN_USE  # An operator holds the service.
    UNKNOWN = '', _M.IN_USE  # Any state that is not listed.

    meaning: Meaning

    def __new__(cls, name: str, meaning: Meaning) -> 'ProvisionState':
        state = object.__new__(cls)
        state._value_, state.meaning = name, meaning
        return state

    @classmethod
    def parse(cls, raw: str | None) -> 'ProvisionState':
        """Return the state of a node's ``provision_state``.

        None is AVAILABLE, because Ironic's NOSTATE is null. A state that is
        not listed is UNKNOWN and is logged once.
        """
        if raw is None:
            return cls.AVAILABLE
        try:
            return cls(raw)  # type: ignore[call-arg]
        except ValueError:
            _warn_once('provision', raw)
            return cls.UNKNOWN


class PowerState(enum.Enum):
    """Ironic's power states; UNKNOWN is any other one, or none."""

    ON = 'power on'
    OFF = 'power off'
    REBOOT = 'rebooting'
    ERROR = 'error'
    UNKNOWN = ''

    @classmethod
    def parse(cls, raw: str | None) -> 'PowerState':
        """Return the state of a node's ``power_state``.

        None is UNKNOWN: Ironic has not read the power of the node yet. A
        state that is not listed is UNKNOWN too and is logged once.
        """
        try:
            return cls(raw or '')
        except ValueError:
            _warn_once('power', str(raw))
            return cls.UNKNOWN


def meaning(provision_state: str | None) -> Meaning:
    """Return what a node's ``provision_state`` means for Nova."""
    return ProvisionState.parse(provision_state).meaning


def _warn_once(kind: str, raw: str) -> None:
    if raw not in _logged:
        _logged.add(raw)
        LOG.warning(
            'Ironic showed the unknown %(kind)s state %(state)s; nodes in it '
            'take no builds',
            {'kind': kind, 'state': raw},
        )
