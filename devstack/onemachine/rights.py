# SPDX-License-Identifier: Apache-2.0
"""The daemons' Keystone user, with exactly the rights of the manual.

The tables are those of the manual's page about security. The user has the role
``service`` and no other. What the role gives beyond the tables is taken from
this user, and from nobody else, by the policy files of the services.

Ironic, Placement, Neutron, Glance and nova-api read their policy file again at
the next request after it has changed.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from onemachine import config, registry
from onemachine.dials import Dials
from onemachine.layout import CINDER, PASSWORD, REPOSITORY, Layout

USER = 'ironic-compute'
# The rule of Cinder by which it knows administrators.
_IS_ADMIN = 'context_is_admin'
_PAGE = REPOSITORY / 'doc' / 'source' / 'admin' / 'security.rst'
# Service -> the name of its policies among the entry points.
_NAMESPACES: Mapping[str, str] = {
    'ironic': 'ironic.api',
    'placement': 'placement',
    'neutron': 'neutron',
    'glance': 'glance',
    'nova': 'nova',
    CINDER: 'cinder',
}
_SECTIONS = {'ironic', 'placement', 'neutron', CINDER, 'service_user'}


def listed(text: str, caption: str) -> frozenset[str]:
    """Return the policy rules in a table of the manual; none: no table.

    :param text: the manual's page
    :param caption: what the table's caption begins with
    """
    rest = text.partition(f'.. list-table:: {caption}: ')[2]
    body = re.split(r'\n(?=\S)', rest, maxsplit=1)[0]
    cells = re.findall(r'^   \* - (.+(?:\n       .+)*)$', body, re.M)
    return frozenset(
        rule for cell in cells for rule in re.findall('``(.+?)``', cell)
    )


def of_manual(service: str) -> frozenset[str]:
    """Return the rules that the manual lists for a service."""
    name, text = service.capitalize(), _PAGE.read_text()
    return listed(text, name) | listed(text, f'{name}, to be allowed')


def to_be_allowed(service: str) -> frozenset[str]:
    """Return those that the role ``service`` does not have by default."""
    return listed(_PAGE.read_text(), f'{service.capitalize()}, to be allowed')


def policies(
    defaults: Mapping[str, str],
    allowed: Iterable[str],
    added: Iterable[str],
    user_id: str,
) -> dict[str, str]:
    """Return the rules of a policy file that leaves a user these rights only.

    Each rule is in it, because a former name of a rule in a policy file would
    override the rule of today.

    :param defaults: rule -> its check string by default
    :param allowed: the rights
    :param added: those of them that the user does not have by default
    """
    me, kept = f'user_id:{user_id}', set(allowed)
    return {
        rule: (
            f'({check or "@"}) and not {me}'
            if rule not in kept
            else f'({check or "@"}) or {me}'
            if rule in set(added)
            else check
        )
        for rule, check in defaults.items()
    }


@functools.cache
def defaults(service: str) -> Mapping[str, str]:
    """Return the check strings of a service's API, by rule."""
    from oslo_policy import generator, policy

    (rules,) = generator.get_policies_dict([_NAMESPACES[service]]).values()
    # A rule without an operation is an alias that other rules name.
    return {
        rule.name: rule.check_str
        for rule in rules
        if isinstance(rule, policy.DocumentedRuleDefault)
    }


class Rights:
    """The rights of the daemons' user in a running cloud."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def apply(self) -> None:
        """Write all policy files, as the setting ``rights`` has them."""
        if not are_least(self._layout):
            for service in self._services():
                config.write(
                    config.policy_file(self._layout, service),
                    config.NO_POLICIES,
                )
            return
        self._user_id = _make_user(self._layout)
        for service in self._services():
            self.allow(service, of_manual(service))

    def _services(self) -> list[str]:
        has_volumes = config.has_volumes(self._layout)
        return [s for s in _NAMESPACES if has_volumes or s != CINDER]

    def allow(self, service: str, rules: Iterable[str]) -> None:
        """Leave the user these rights in one service, and no others."""
        found = policies(
            defaults(service), rules, to_be_allowed(service), self._user_id
        )
        if service == CINDER:
            # Otherwise Cinder denies that there are volumes of others.
            found[_IS_ADMIN] = f'role:admin or user_id:{self._user_id}'
        lines = [f'"{rule}": "{check}"\n' for rule, check in found.items()]
        path = config.policy_file(self._layout, service)
        config.write(path, ''.join(sorted(lines)))


def are_least(layout: Layout) -> bool:
    """Return whether the daemons have the rights of the manual only."""
    return bool(Dials(layout).read()['rights'] == 'least')


def restrict(
    layout: Layout, nova: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the sections of a daemon's nova.conf with its user."""
    found = {name: dict(options) for name, options in nova.items()}
    if are_least(layout):
        for name in found.keys() & _SECTIONS:
            found[name] |= {'username': USER, 'password': PASSWORD}
    return found


def _make_user(layout: Layout) -> str:
    """Create the user with its one role, unless it is there; return its id."""
    identity = registry.connect(layout).identity
    user = identity.find_user(USER) or identity.create_user(
        name=USER, password=PASSWORD, domain_id='default'
    )
    role = identity.find_role('service')
    project = identity.find_project('service')
    identity.assign_project_role_to_user(project, user, role)
    identity.assign_system_role_to_user(user, role, 'all')
    return str(user.id)
