# SPDX-License-Identifier: Apache-2.0
"""Ironic's provision and power states, and what each means for Nova: a table.

Source: https://docs.openstack.org/ironic/latest/user/states.html and
``ironic.common.states``. A state that this table lacks is UNKNOWN: the node
takes no builds, and the state is logged once.
"""

import enum
from collections.abc import Mapping

from oslo_log import log as logging

LOG = logging.getLogger(__name__)
_logged: set[str] = set()


class ProvisionState(enum.Enum):
    """Where a node is in its life."""

    ENROLL = 'enroll'  # Known by name only.
    VERIFYING = 'verifying'  # Credentials are being tried.
    MANAGEABLE = 'manageable'  # An operator works on it.
    AVAILABLE = 'available'  # Free to be deployed.
    ACTIVE = 'active'  # Has a workload.
    DEPLOY = 'deploy'  # Ironic's target, never shown.
    DEPLOYWAIT = 'wait call-back'  # Its ramdisk is awaited.
    DEPLOYING = 'deploying'  # Being deployed.
    DEPLOYFAIL = 'deploy failed'  # Could not be deployed.
    DEPLOYDONE = 'deploy complete'  # Deployed, not yet active.
    DEPLOYHOLD = 'deploy hold'  # An operator holds the deploy.
    DELETING = 'deleting'  # The workload is taken down.
    DELETED = 'deleted'  # Ironic's target of a tear-down.
    CLEANING = 'cleaning'  # Prepared for the next workload.
    UNDEPLOY = 'undeploy'  # Ironic's target, never shown.
    CLEANWAIT = 'clean wait'  # Its ramdisk is awaited.
    CLEANFAIL = 'clean failed'  # Could not be cleaned.
    CLEANHOLD = 'clean hold'  # An operator holds the cleaning.
    ERROR = 'error'  # The tear-down failed.
    REBUILD = 'rebuild'  # Ironic's target of a rebuild.
    INSPECTING = 'inspecting'  # Being inspected.
    INSPECTFAIL = 'inspect failed'  # Could not be inspected.
    INSPECTWAIT = 'inspect wait'  # The inspector is awaited.
    ADOPTING = 'adopting'  # Taken over with its workload.
    ADOPTFAIL = 'adopt failed'  # Could not be taken over.
    RESCUE = 'rescue'  # Runs a rescue ramdisk.
    RESCUEFAIL = 'rescue failed'  # Could not be rescued.
    RESCUEWAIT = 'rescue wait'  # Its rescue ramdisk is awaited.
    RESCUING = 'rescuing'  # Being rescued.
    UNRESCUEFAIL = 'unrescue failed'  # Could not leave the rescue.
    UNRESCUING = 'unrescuing'  # Leaves the rescue.
    SERVICE = 'service'  # Ironic's target, never shown.
    SERVICING = 'servicing'  # Serviced with its workload.
    SERVICEWAIT = 'service wait'  # Its ramdisk is awaited.
    SERVICEFAIL = 'service failed'  # Could not be serviced.
    SERVICEHOLD = 'service hold'  # An operator holds the service.
    UNKNOWN = ''  # None of these.

    @classmethod
    def parse(cls, raw: str | None) -> 'ProvisionState':
        """Read what Ironic shows; None was its word for available."""
        if raw is None:
            return cls.AVAILABLE
        try:
            return cls(raw)
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


_S, _M = ProvisionState, Meaning

MEANING: Mapping[ProvisionState, Meaning] = {
    _S.AVAILABLE: _M.CAN_TAKE_A_BUILD,
    _S.DEPLOY: _M.ON_ITS_WAY,
    _S.DEPLOYING: _M.ON_ITS_WAY,
    _S.DEPLOYWAIT: _M.ON_ITS_WAY,
    _S.DEPLOYDONE: _M.ON_ITS_WAY,
    _S.DEPLOYHOLD: _M.ON_ITS_WAY,
    _S.REBUILD: _M.ON_ITS_WAY,
    _S.ACTIVE: _M.IN_USE,
    _S.RESCUE: _M.IN_USE,
    _S.RESCUING: _M.IN_USE,
    _S.RESCUEWAIT: _M.IN_USE,
    _S.RESCUEFAIL: _M.IN_USE,
    _S.UNRESCUING: _M.IN_USE,
    _S.UNRESCUEFAIL: _M.IN_USE,
    _S.SERVICE: _M.IN_USE,
    _S.SERVICING: _M.IN_USE,
    _S.SERVICEWAIT: _M.IN_USE,
    _S.SERVICEFAIL: _M.IN_USE,
    _S.SERVICEHOLD: _M.IN_USE,
    _S.UNKNOWN: _M.IN_USE,
    _S.DEPLOYFAIL: _M.FAILED,
    _S.ERROR: _M.FAILED,
    _S.DELETING: _M.LEAVING,
    _S.DELETED: _M.LEAVING,
    _S.UNDEPLOY: _M.LEAVING,
    _S.CLEANING: _M.LEAVING,
    _S.CLEANWAIT: _M.LEAVING,
    _S.CLEANFAIL: _M.LEAVING,
    _S.CLEANHOLD: _M.LEAVING,
    _S.ENROLL: _M.OUT_OF_REACH,
    _S.VERIFYING: _M.OUT_OF_REACH,
    _S.MANAGEABLE: _M.OUT_OF_REACH,
    _S.INSPECTING: _M.OUT_OF_REACH,
    _S.INSPECTFAIL: _M.OUT_OF_REACH,
    _S.INSPECTWAIT: _M.OUT_OF_REACH,
    _S.ADOPTING: _M.OUT_OF_REACH,
    _S.ADOPTFAIL: _M.OUT_OF_REACH,
}


def meaning(provision_state: str | None) -> Meaning:
    """Return what a state as Ironic shows it is to Nova."""
    return MEANING[ProvisionState.parse(provision_state)]


def _warn_once(kind: str, raw: str) -> None:
    if raw not in _logged:
        _logged.add(raw)
        LOG.warning(
            'Ironic showed the unknown %(kind)s state %(state)s; nodes in it '
            'take no builds',
            {'kind': kind, 'state': raw},
        )
