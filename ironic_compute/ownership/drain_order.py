# SPDX-License-Identifier: Apache-2.0
"""An operator's order to drain a host, as Nova stores it.

The host is disabled, and ``disabled_reason`` of its Service record contains
the order. So the order survives every daemon, all of them read it, and people
see it in ``openstack compute service list``. Pure.
"""

import dataclasses
import re
from typing import Any

# ``disabled_reason`` of a host that is drained begins with it.
MARK = 'ironic-compute: draining'
_RETIRES = ', then retired'
_LIMIT = ', servers per minute: '
_ZONE = ', also to other zones'
_FORMER = '; disabled before: '
_FORM = re.compile(
    f'{MARK}(?P<retires>{_RETIRES})?(?:{_LIMIT}(?P<limit>[0-9]+))?'
    f'(?P<zone>{_ZONE})?(?:{_FORMER}(?P<former>.*))?',
    re.DOTALL,
)
# Nova's database has no more space for a reason.
_LENGTH_MAX = 255


@dataclasses.dataclass(frozen=True, slots=True)
class DrainOrder:
    """The order to drain one host.

    :param limit: servers that are moved in a minute at most
    :param retires: the host leaves the pool when it is empty
    :param former: the reason with which somebody had disabled the host
        before, maybe an empty one; None if it was enabled
    :param changes_zone: servers may go to hosts in other availability zones
    """

    limit: int | None = None
    retires: bool = False
    former: str | None = None
    changes_zone: bool = False

    def reason(self) -> str:
        """Return the ``disabled_reason`` of the host.

        Of a long former reason only the beginning is kept.
        """
        retires = _RETIRES if self.retires else ''
        limit = '' if self.limit is None else f'{_LIMIT}{self.limit}'
        zone = _ZONE if self.changes_zone else ''
        former = '' if self.former is None else f'{_FORMER}{self.former}'
        return f'{MARK}{retires}{limit}{zone}{former}'[:_LENGTH_MAX]


def read_order(record: Any | None) -> DrainOrder | None:
    """Return the order in a Service record; None: the host is not drained."""
    if record is None or not record.disabled:
        return None
    return parse_order(str(record.disabled_reason or ''))


def parse_order(disabled_reason: str) -> DrainOrder | None:
    """Return the order in the ``disabled_reason`` of a disabled host."""
    found = _FORM.match(disabled_reason)
    if found is None:
        return None
    limit = found['limit']
    return DrainOrder(
        None if limit is None else int(limit),
        found['retires'] is not None,
        found['former'],
        found['zone'] is not None,
    )
