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
    """What a provision state is to Nova."""

    CAN_TAKE_A_BUILD = enum.auto()
    ON_ITS_WAY = enum.auto()
    """A deploy that Ironic will bring to an end."""
    IN_USE = enum.auto()
    """It has a workload that ``deleted`` takes down."""
    FAILED = enum.auto()
    """A deploy or tear-down has ended badly; ``deleted`` takes it down."""
    LEAVING = enum.auto()
    """Ironic is letting go of the instance, or has."""
    OUT_OF_REACH = enum.auto()
    """Neither Nova's to use nor to take down."""


_M = Meaning


class ProvisionState(enum.Enum):
    """Where a node is in its life, and what that is to Nova."""

    ENROLL = 'enroll', _M.OUT_OF_REACH  # Known by name only.
    VERIFYING = 'verifying', _M.OUT_OF_REACH  # Credentials are being tried.
    MANAGEABLE = 'manageable', _M.OUT_OF_REACH  # An operator works on it.
    AVAILABLE = 'available', _M.CAN_TAKE_A_BUILD  # Free to be deployed.
    ACTIVE = 'active', _M.IN_USE  # Has a workload.
    DEPLOY = 'deploy', _M.ON_ITS_WAY  # Ironic's target, never shown.
    DEPLOYWAIT = 'wait call-back', _M.ON_ITS_WAY  # Its ramdisk is awaited.
    DEPLOYING = 'deploying', _M.ON_ITS_WAY  # Being deployed.
    DEPLOYFAIL = 'deploy failed', _M.FAILED  # Could not be deployed.
    DEPLOYDONE = 'deploy complete', _M.ON_ITS_WAY  # Deployed, not yet active.
    DEPLOYHOLD = 'deploy hold', _M.ON_ITS_WAY  # An operator holds the deploy.
    DELETING = 'deleting', _M.LEAVING  # The workload is taken down.
    DELETED = 'deleted', _M.LEAVING  # Ironic's target of a tear-down.
    CLEANING = 'cleaning', _M.LEAVING  # Prepared for the next workload.
    UNDEPLOY = 'undeploy', _M.LEAVING  # Ironic's target, never shown.
    CLEANWAIT = 'clean wait', _M.LEAVING  # Its ramdisk is awaited.
    CLEANFAIL = 'clean failed', _M.LEAVING  # Could not be cleaned.
    CLEANHOLD = 'clean hold', _M.LEAVING  # An operator holds the cleaning.
    ERROR = 'error', _M.FAILED  # The tear-down failed.
    REBUILD = 'rebuild', _M.ON_ITS_WAY  # Ironic's target of a rebuild.
    INSPECTING = 'inspecting', _M.OUT_OF_REACH  # Being inspected.
    INSPECTFAIL = 'inspect failed', _M.OUT_OF_REACH  # Could not be inspected.
    INSPECTWAIT = 'inspect wait', _M.OUT_OF_REACH  # The inspector is awaited.
    ADOPTING = 'adopting', _M.OUT_OF_REACH  # Taken over with its workload.
    ADOPTFAIL = 'adopt failed', _M.OUT_OF_REACH  # Could not be taken over.
    RESCUE = 'rescue', _M.IN_USE  # Runs a rescue ramdisk.
    RESCUEFAIL = 'rescue failed', _M.IN_USE  # Could not be rescued.
    RESCUEWAIT = 'rescue wait', _M.IN_USE  # Its rescue ramdisk is awaited.
    RESCUING = 'rescuing', _M.IN_USE  # Being rescued.
    UNRESCUEFAIL = 'unrescue failed', _M.IN_USE  # Could not leave the rescue.
    UNRESCUING = 'unrescuing', _M.IN_USE  # Leaves the rescue.
    SERVICE = 'service', _M.IN_USE  # Ironic's target, never shown.
    SERVICING = 'servicing', _M.IN_USE  # Serviced with its workload.
    SERVICEWAIT = 'service wait', _M.IN_USE  # Its ramdisk is awaited.
    SERVICEFAIL = 'service failed', _M.IN_USE  # Could not be serviced.
    SERVICEHOLD = 'service hold', _M.IN_USE  # An operator holds the service.
    UNKNOWN = '', _M.IN_USE  # None of these.

    meaning: Meaning

    def __new__(cls, name: str, meaning: Meaning) -> 'ProvisionState':
        state = object.__new__(cls)
        state._value_, state.meaning = name, meaning
        return state

    @classmethod
    def parse(cls, raw: str | None) -> 'ProvisionState':
        """Read what Ironic shows; None was its word for available."""
        if raw is None:
            return cls.AVAILABLE
        try:
            return cls(raw)  # type: ignore[call-arg]
        except ValueError:
            _warn_once('provision', raw)
            return cls.UNKNOWN


class PowerState(enum.Enum):
    """Whether a node runs."""

    ON = 'power on'
    OFF = 'power off'
    REBOOT = 'rebooting'
    ERROR = 'error'
    UNKNOWN = ''

    @classmethod
    def parse(cls, raw: str | None) -> 'PowerState':
        """Read what Ironic shows."""
        try:
            return cls(raw or '')
        except ValueError:
            _warn_once('power', str(raw))
            return cls.UNKNOWN


def meaning(provision_state: str | None) -> Meaning:
    """Return what a state as Ironic shows it is to Nova."""
    return ProvisionState.parse(provision_state).meaning


def _warn_once(kind: str, raw: str) -> None:
    if raw not in _logged:
        _logged.add(raw)
        LOG.warning(
            'Ironic showed the unknown %(kind)s state %(state)s; nodes in it '
            'take no builds',
            {'kind': kind, 'state': raw},
        )
