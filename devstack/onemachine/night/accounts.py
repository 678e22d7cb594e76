# SPDX-License-Identifier: Apache-2.0
"""The accounts of each daemon in Keystone and in RabbitMQ.

Each daemon has its own, so that the accounts of one daemon can be broken
while the others work.
"""

import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from keystoneauth1.exceptions import ClientException
from keystoneauth1.identity import v3
from keystoneauth1.session import Session

from onemachine import registry
from onemachine.backends import rabbitmq_environment
from onemachine.layout import ADDRESS, PASSWORD, Layout
from onemachine.progress import CloudError

RABBITMQCTL = '/usr/lib/rabbitmq/bin/rabbitmqctl'
_ALL = ('.*', '.*', '.*')


def account(host: str) -> str:
    """Return the name of a daemon's accounts."""
    return f'nova-{host}'


def with_accounts(
    layout: Layout, host: str, sections: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the sections of a daemon's file, with its own accounts."""
    found = {name: dict(options) for name, options in sections.items()}
    for options in found.values():
        if options.get('username') == 'nova':
            options['username'] = account(host)
        if 'transport_url' in options:
            options['transport_url'] = (
                f'rabbit://{account(host)}:{PASSWORD}@{ADDRESS}:'
                f'{layout.port("rabbit")}/'
            )
    return found


def rabbitmqctl(layout: Layout, *words: str) -> str:
    """Run rabbitmqctl; return its output.

    :raises CloudError: it failed
    """
    done = subprocess.run(
        [RABBITMQCTL, '--quiet', *words],
        env=rabbitmq_environment(layout),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CloudError(f'rabbitmqctl: {done.stdout}{done.stderr}')
    return done.stdout


def ensure(layout: Layout, hosts: Sequence[str]) -> None:
    """Make all accounts, and give them back the rights that they lack."""
    _ensure_rabbitmq(layout, hosts)
    for host in hosts:
        if not _is_accepted(layout, account(host)):
            _ensure_keystone(layout, account(host))


def _ensure_rabbitmq(layout: Layout, hosts: Sequence[str]) -> None:
    users = rabbitmqctl(layout, 'list_users').splitlines()
    names = {line.partition('\t')[0] for line in users}
    granted = {
        tuple(line.split('\t'))
        for line in rabbitmqctl(layout, 'list_permissions').splitlines()
    }
    for host in hosts:
        name = account(host)
        if name not in names:
            rabbitmqctl(layout, 'add_user', name, PASSWORD)
        if (name, *_ALL) not in granted:
            rabbitmqctl(layout, 'set_permissions', name, *_ALL)


def _is_accepted(layout: Layout, name: str) -> bool:
    """Return whether Keystone gives both tokens that a daemon needs."""
    user: dict[str, Any] = {
        'auth_url': layout.url('keystone'),
        'username': name,
        'password': PASSWORD,
        'user_domain_name': 'Default',
    }
    scopes: Sequence[dict[str, Any]] = (
        {'system_scope': 'all'},
        {'project_name': 'service', 'project_domain_name': 'Default'},
    )
    try:
        for scope in scopes:
            Session().get_token(v3.Password(**user, **scope))
    except ClientException:
        return False
    return True


def _ensure_keystone(layout: Layout, name: str) -> None:
    identity = registry.connect(layout).identity
    project = identity.find_project('service')
    user = identity.find_user(name) or identity.create_user(
        name=name, password=PASSWORD, domain_id='default'
    )
    # The daemons that use this account need new tokens afterwards.
    identity.update_user(user, password=PASSWORD, is_enabled=True)
    for role in ('admin', 'service'):
        found = identity.find_role(role)
        identity.assign_project_role_to_user(project, user, found)
        identity.assign_system_role_to_user(user, found, 'all')
