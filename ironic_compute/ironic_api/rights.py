# SPDX-License-Identifier: Apache-2.0
"""The rights in Ironic that can be tried without changing anything.

Ironic checks a user's rights before it looks at the body of a request. So each
request here is one that only reads, or one that Ironic refuses as wrong once
it has found the right. The rights that only a valid request would show are
missing: to attach and detach VIFs, to inject an NMI, to switch a console, and
to delete a volume target.
"""

import dataclasses
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

CURE = (
    ': give it the role service with system_scope = all, or allow the rule in '
    "Ironic's policy file"
)
# Nodes of a project that does not exist; see IronicReader.can_list_all_nodes.
NO_PROJECT_NODES = '/v1/nodes?project=nobody&limit=1&fields=uuid'
# Neither a state of power nor of provisioning has this name, and a node has no
# such field.
_WRONG = 'ironic-compute-status'


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A request that shows whether the user has a right.

    :param is_optional: servers without volumes and consoles do without it
    """

    rule: str
    method: str
    url: str
    body: Any = None
    is_optional: bool = False


READ_NODE = Trial('baremetal:node:get', 'GET', '/v1/nodes')
# Fields of a node that Ironic shows to those only who have a further right.
GUARDED_FIELDS = ('last_error', 'reservation', 'driver_internal_info')


def field_rule(field: str) -> str:
    """Return the rule without which a guarded field is redacted."""
    return f'baremetal:node:get:{field}'


def is_redacted(value: object) -> bool:
    """Return whether Ironic shows a text instead of a field's value.

    Ironic writes it in two ways: ``** Redacted - requires …`` and ``** Value
    Redacted - Requires …``; instead of an object, below ``content``.
    """
    text = value.get('content') if isinstance(value, Mapping) else value
    return (
        isinstance(text, str)
        and text.startswith('**')
        and 'Redacted' in text
        and 'permission' in text
    )


def redacted_fields(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a node that Ironic does not show."""
    return tuple(f for f in GUARDED_FIELDS if is_redacted(record.get(f)))


def trials(node: str | None) -> Iterator[Trial]:
    """Yield the requests; rights to read a node are found by reading one.

    :param node: any node, which stays as it is; None: there is none, so that
        only rights about lists can be tried
    """
    yield Trial('baremetal:node:list_all', 'GET', NO_PROJECT_NODES)
    for kind in ('port', 'portgroup'):
        yield Trial(
            f'baremetal:{kind}:list_all', 'GET', f'/v1/{kind}s?limit=1'
        )
    volumes = '/v1/volume/targets'
    yield Trial('baremetal:volume:list_all', 'GET', f'{volumes}?limit=1')
    yield Trial(
        'baremetal:volume:create',
        'POST',
        volumes,
        _target_of_no_node(),
        is_optional=True,
    )
    if node is not None:
        validate = f'/v1/nodes/validate?node_uuid={node}'
        yield Trial('baremetal:node:validate', 'GET', validate)
        yield from _of_node(f'/v1/nodes/{node}')


def _of_node(url: str) -> Iterator[Trial]:
    for rule, field in (
        ('update:instance_uuid', 'instance_uuid'),
        ('update_instance_info', 'instance_info'),
    ):
        patch = [{'op': 'remove', 'path': f'/{field}/{_WRONG}'}]
        yield Trial(f'baremetal:node:{rule}', 'PATCH', url, patch)
    for kind in ('provision', 'power'):
        rule = f'baremetal:node:set_{kind}_state'
        body = {'target': _WRONG}
        yield Trial(rule, 'PUT', f'{url}/states/{kind}', body)
    yield Trial('baremetal:node:vif:list', 'GET', f'{url}/vifs')
    yield Trial(
        'baremetal:node:get_console',
        'GET',
        f'{url}/states/console',
        is_optional=True,
    )


def _target_of_no_node() -> Mapping[str, object]:
    return {
        'node_uuid': str(uuid.uuid4()),
        'volume_id': _WRONG,
        'volume_type': 'iscsi',
        'boot_index': 0,
    }
