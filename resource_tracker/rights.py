# SPDX-License-Identifier: Apache-2.0
"""The rights in Placement, each with a request that changes nothing.

Placement checks a user's rights before it looks at the rest of a request. So
each request here is one that only reads, or one about something that does not
exist or cannot be changed, which Placement refuses as wrong once it has found
the right.
"""

import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

CURE = (
    ': give it the role service in its project, or allow the rule in '
    "Placement's policy file"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A request that shows whether the user has a right.

    :param is_optional: only ``ironic-computectl fsck --repair`` needs it
    """

    rule: str
    method: str
    url: str
    body: Mapping[str, Any] | None = None
    is_optional: bool = False


def trials() -> Iterator[Trial]:
    """Yield a request for each right, in the order of the manual."""
    nobody = str(uuid.uuid4())
    yield from _of_providers(nobody)
    # Standard names can neither be created nor deleted.
    for rule, method, url in (
        ('resource_classes:show', 'GET', '/resource_classes/VCPU'),
        ('resource_classes:update', 'PUT', '/resource_classes/VCPU'),
        ('traits:list', 'GET', '/traits?name=in:COMPUTE_NODE'),
        ('traits:update', 'PUT', '/traits/COMPUTE_NODE'),
        ('allocations:list', 'GET', f'/allocations/{nobody}'),
        ('allocations:update', 'PUT', f'/allocations/{nobody}'),
        ('allocations:delete', 'DELETE', f'/allocations/{nobody}'),
    ):
        yield Trial(f'placement:{rule}', method, url, _body(method))
    rule = 'placement:reshaper:reshape'
    yield Trial(rule, 'POST', '/reshaper', {}, is_optional=True)


def _of_providers(nobody: str) -> Iterator[Trial]:
    """Yield those about providers.

    :param nobody: the uuid of no provider
    """
    every = '/resource_providers'
    one = f'{every}/{nobody}'
    for rule, method, url in (
        ('list', 'GET', f'{every}?uuid={nobody}'),
        ('create', 'POST', every),
        ('delete', 'DELETE', one),
        ('inventories:list', 'GET', f'{one}/inventories'),
        ('inventories:update', 'PUT', f'{one}/inventories'),
        ('traits:list', 'GET', f'{one}/traits'),
        ('traits:update', 'PUT', f'{one}/traits'),
        ('aggregates:list', 'GET', f'{one}/aggregates'),
        ('aggregates:update', 'PUT', f'{one}/aggregates'),
        ('usages', 'GET', f'{one}/usages'),
        ('allocations:list', 'GET', f'{one}/allocations'),
    ):
        rule = f'placement:resource_providers:{rule}'
        yield Trial(rule, method, url, _body(method))


def _body(method: str) -> Mapping[str, Any] | None:
    """Return a body that lacks everything, if the method has a body."""
    return {} if method in ('PUT', 'POST') else None
