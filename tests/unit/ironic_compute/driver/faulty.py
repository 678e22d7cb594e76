# SPDX-License-Identifier: Apache-2.0
"""An Ironic whose n-th request fails in a given way, for ``test_faults``.

The failures are exceptions of ironicclient and keystoneauth1, translated as
``ironic_api`` translates them. Some are raised after Ironic has executed the
request, as if only its answer was lost.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from ironicclient.common.apiclient import exceptions as api_exc
from keystoneauth1 import exceptions as ksa_exc

from ironic_compute.ironic_api.session import translate_error
from tests.fakes.ironic import NODE, FakeIronic

_LOCKED = f'Node {NODE} is locked by host c, please retry after it is done.'
_TAKEN = f'Node {NODE} is associated with instance i.'


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a request fails.

    :param name: for the matrix of outcomes
    :param make: creates the exception of the library
    :param is_done: Ironic has executed the request before the failure
    """

    name: str
    make: Callable[[], Exception]
    is_done: bool = False

    @property
    def may_last(self) -> bool:
        """Whether all requests to Ironic can fail in this way for long."""
        return self.name in ('409 locked', '500', 'time-out', '401')

    def __str__(self) -> str:
        return self.name


FAULTS = (
    Fault('409 locked', lambda: api_exc.Conflict(_LOCKED)),
    Fault('409 taken', lambda: api_exc.Conflict(_TAKEN)),
    Fault('500', lambda: api_exc.InternalServerError('oops')),
    Fault('500 done', lambda: api_exc.InternalServerError('oops'), True),
    Fault('503', lambda: api_exc.ServiceUnavailable('later')),
    Fault('time-out', lambda: ksa_exc.ConnectTimeout('timed out')),
    Fault('late', lambda: api_exc.GatewayTimeout('too late'), True),
    Fault('reset', lambda: ksa_exc.ConnectFailure('reset by peer')),
    Fault('reset done', lambda: api_exc.ConnectionError('reset'), True),
    Fault('401', lambda: api_exc.Unauthorized('token has expired')),
    Fault('406', lambda: api_exc.UnsupportedVersion('version 1.95')),
    Fault('gone', lambda: api_exc.NotFound(f'Node {NODE} could not be found')),
)  # fmt: skip

# The methods of the Ironic client that read, and those that change.
_READS = (
    *('read_node', 'read_node_of_instance', 'read_fields'),
    *('validate_node', 'list_vifs', 'list_volume_targets'),
    *('list_volume_connectors', 'read_microversion'),
)
_CHANGES = (
    *('reserve_node', 'release_node', 'patch_node', 'set_provision_state'),
    *(
        'attach_vif',
        'detach_vif',
        'create_volume_target',
        'delete_volume_target',
    ),
    *('set_power_state',),
)


class FaultyIronic:
    """An Ironic in memory whose request number ``at`` fails.

    ``requests`` has the names of all requests, in order; ``is_lasting`` lets
    all later requests fail too.
    """

    def __init__(self, ironic: FakeIronic) -> None:
        self._ironic = ironic
        self.requests: list[str] = []
        self.at: int | None = None
        self.is_lasting = False
        self.fault = FAULTS[0]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ironic, name)
        if name not in _READS + _CHANGES:
            return found

        def request(*args: Any, **kwargs: Any) -> Any:
            self.requests.append(_request_name(name, args))
            if not self._is_hit(len(self.requests) - 1):
                return found(*args, **kwargs)
            if self.fault.name == 'gone':
                self._ironic.nodes.pop(NODE, None)
                self._ironic.targets.clear()
            if self.fault.is_done:
                found(*args, **kwargs)
            raise translate_error(f'{name} node {NODE}', self.fault.make())

        return request

    def _is_hit(self, number: int) -> bool:
        if self.at is None:
            return False
        return number == self.at or (self.is_lasting and number > self.at)


def _request_name(name: str, args: tuple[Any, ...]) -> str:
    is_state = name.endswith('_state')
    return str(args[1]) if is_state else name
