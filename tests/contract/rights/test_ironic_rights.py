# SPDX-License-Identifier: Apache-2.0
"""The rights in Ironic that the manual lists are those that the client needs.

A real Ironic enforces its policies on a user with the role ``service`` for the
system, and nothing else. Every method of the client sends its
requests: once with all other rules denied, and once for each rule of the
manual with this one denied.
"""

import inspect
import pathlib
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import nova.conf
import pytest
import requests
import yaml
from ironicclient import client as ironicclient
from ironicclient.common.apiclient import exceptions as api_exceptions
from keystoneauth1 import loading as ks_loading

from hashring.clock import SystemClock
from ironic_compute import errors
from ironic_compute.gate import LeaseGate
from ironic_compute.ironic_api import rights
from ironic_compute.ironic_api.client import IronicClient
from tests.contract.ironic.server import RealIronic, real_ironic
from tests.contract.rights import keystone, manual

pytest.importorskip('ironic')
ironic_policy = pytest.importorskip('ironic.common.policy')

_PATCH = [{'op': 'add', 'path': '/instance_info/image_source', 'value': 'x'}]
Call = Callable[[IronicClient, str], object]

# Method -> a call of it; the node is a uuid. Only the right to send a request
# matters here: Ironic checks it before it looks at the state of the node.
CALLS: Mapping[str, Call] = {
    'check_access': lambda ironic, _: ironic.check_access(10.0),
    'check_pool': lambda ironic, _: ironic.check_pool(),
    'list_nodes': lambda ironic, _: ironic.list_nodes(),
    'list_changed_nodes': lambda ironic, _: ironic.list_changed_nodes(None),
    'read_microversion': lambda ironic, _: ironic.read_microversion(),
    'read_node': lambda ironic, node: ironic.read_node(node),
    'missing_rights': lambda ironic, node: ironic.missing_rights(node),
    'can_list_all_nodes': lambda ironic, _: ironic.can_list_all_nodes(),
    'read_node_of_instance': (
        lambda ironic, _: ironic.read_node_of_instance(str(uuid.uuid4()))
    ),
    'read_date': lambda ironic, _: ironic.read_date(),
    'read_fields': (
        lambda ironic, node: ironic.read_fields(node, rights.GUARDED_FIELDS)
    ),
    'validate_node': lambda ironic, node: ironic.validate_node(node),
    'list_ports': lambda ironic, node: ironic.list_ports(node),
    'list_portgroups': lambda ironic, node: ironic.list_portgroups(node),
    'list_vifs': lambda ironic, node: ironic.list_vifs(node),
    'read_console': lambda ironic, node: ironic.read_console(node),
    'list_volume_connectors': (
        lambda ironic, node: ironic.list_volume_connectors(node)
    ),
    'list_volume_targets': (
        lambda ironic, node: ironic.list_volume_targets(node)
    ),
    'list_nodes_of_all_pools': (
        lambda ironic, node: list(ironic.list_nodes_of_all_pools())
    ),
    'list_all_vifs': lambda ironic, node: ironic.list_all_vifs(),
    'list_all_volume_targets': (
        lambda ironic, node: ironic.list_all_volume_targets()
    ),
    'reserve_node': (
        lambda ironic, node: ironic.reserve_node(node, str(uuid.uuid4()))
    ),
    'patch_node': lambda ironic, node: ironic.patch_node(node, _PATCH),
    'set_power_state': (
        lambda ironic, node: ironic.set_power_state(node, 'on')
    ),
    'set_provision_state': (
        lambda ironic, node: ironic.set_provision_state(node, 'abort')
    ),
    'inject_nmi': lambda ironic, node: ironic.inject_nmi(node),
    'attach_vif': lambda ironic, node: ironic.attach_vif(node, 'vif'),
    'detach_vif': lambda ironic, node: ironic.detach_vif(node, 'vif'),
    'set_console_mode': (
        lambda ironic, node: ironic.set_console_mode(node, False)
    ),
    'create_volume_target': (
        lambda ironic, node: ironic.create_volume_target(
            node,
            volume_id=str(uuid.uuid4()),
            volume_type='iscsi',
            boot_index=0,
            properties={'target_iqn': 'secret'},
        )
    ),
    'delete_volume_target': lambda ironic, node: _delete_target(ironic, node),
    'release_node': lambda ironic, node: _release(ironic, node),
}
# These send no request.
QUIET = {
    'set_meter',
    'is_in_pool',
    'is_in_group',
    'has_shard',
    'pool',
    'wait_for_lease',
}


class Server:
    """A real Ironic, its policy file, and a node in it."""

    def __init__(self, ironic: RealIronic, policy: pathlib.Path) -> None:
        self.url = ironic.url
        self._policy = policy
        self.operator = self.connect(keystone.ADMIN_TOKEN)
        self.allow_all()
        self._ironic = ironic
        self.node = self.enroll()

    def enroll(self) -> str:
        """Create a node that is available; return its uuid."""
        made = self.operator.node.create(
            driver='fake-hardware', resource_class='gold'
        )
        self._ironic.write(str(made.uuid), provision_state='available')
        return str(made.uuid)

    def connect(self, token: str) -> Any:
        """Return an ironicclient with the rights of a token."""
        return ironicclient.get_client(
            '1',
            auth_type='admin_token',
            endpoint=self.url,
            token=token,
            os_ironic_api_version='1.95',
        )

    def allow_all(self) -> None:
        """Let Ironic's defaults hold, also for the operator's changes."""
        self._policy.write_text('{}')

    def deny(self, rules: set[str]) -> None:
        """Deny these rules to everybody from the next request on.

        And the rule that stands for several of the manual's, and for more.
        """
        denied = {*rules, 'baremetal:node:get:filter_threshold'}
        self._policy.write_text(yaml.safe_dump(dict.fromkeys(denied, '!')))

    def content(self) -> Any:
        """Return all of the node, and all volume targets."""
        node = self.operator.node.get(self.node)
        targets = self.operator.volume_target.list(detail=True)
        return node.to_dict(), [target.to_dict() for target in targets]

    def status(self, trial: rights.Trial) -> int:
        """Return the status of the answer to the manual's user."""
        answer = requests.request(
            trial.method,
            f'{self.url}{trial.url}',
            json=trial.body,
            headers={
                'X-Auth-Token': keystone.SYSTEM_TOKEN,
                'X-OpenStack-Ironic-API-Version': '1.95',
            },
            timeout=30,
        )
        return answer.status_code

    def client(self) -> IronicClient:
        """Return a client of ours with the rights of the manual's user."""
        gate = LeaseGate(SystemClock(), float('inf'))
        return IronicClient(nova.conf.CONF, gate)


@pytest.fixture(autouse=True)
def _credentials(server: 'Server') -> Iterator[None]:
    conf = nova.conf.CONF
    # Other plugins have options of the same names, and keystoneauth1 leaves
    # them registered.
    plugin = ks_loading.get_auth_plugin_conf_options('admin_token')
    conf.unregister_opts(plugin, group='ironic')
    conf.register_opts(plugin, group='ironic')
    options = {
        'auth_type': 'admin_token',
        'endpoint': server.url,
        'endpoint_override': server.url,
        'token': keystone.SYSTEM_TOKEN,
        'api_max_retries': 0,
        'api_retry_interval': 0,
    }
    for name, value in options.items():
        conf.set_override(name, value, group='ironic')
    yield
    for name in options:
        conf.clear_override(name, group='ironic')
    conf.unregister_opts(plugin, group='ironic')


@pytest.fixture(scope='module')
def server() -> Iterator[Server]:
    """Run an Ironic that asks a Keystone about tokens."""
    with (
        tempfile.TemporaryDirectory(prefix='ironic-') as name,
        keystone.keystone() as url,
    ):
        folder = pathlib.Path(name)
        policy = folder / 'policy.yaml'
        policy.write_text('{}')
        options = {
            'DEFAULT': {'auth_strategy': 'keystone'},
            'keystone_authtoken': keystone.authtoken(url),
            'oslo_policy': {'policy_file': str(policy)},
        }
        with real_ironic(folder, options, keystone.ADMIN_TOKEN) as ironic:
            yield Server(ironic, policy)


def _all_rules() -> set[str]:
    names = (rule.name for rule in ironic_policy.list_policies())
    return {name for name in names if name.startswith('baremetal:')}


def _former_names(rules: set[str]) -> set[str]:
    """Return names by which Ironic knew these rules before.

    In a policy file a former name overrides the rule of today.
    """
    return {
        rule.deprecated_rule.name
        for rule in ironic_policy.list_policies()
        if rule.name in rules and rule.deprecated_rule is not None
    }


def _delete_target(ironic: IronicClient, node: str) -> None:
    """Delete the target that a former call has made."""
    for target in ironic.list_volume_targets(node):
        ironic.delete_volume_target(str(target['uuid']))


def _release(ironic: IronicClient, node: str) -> None:
    ironic.release_node(node, str(ironic.read_node(node).instance_uuid))


def _detach(server: Server) -> Call:
    """Return the bare request: the client bears its refusal.

    It looks whether the VIF is attached, and hardware that is fake has none.
    """
    user = server.connect(keystone.SYSTEM_TOKEN)

    def detach(_: IronicClient, node: str) -> None:
        try:
            user.node.vif_detach(node, 'vif')
        except api_exceptions.ClientException as exc:
            raise errors.IronicRefused(str(exc)) from exc

    return detach


def _refusals(server: Server) -> dict[str, str]:
    """Call each method; return what was refused, by method."""
    ironic = server.client()
    refused = {}
    for name, call in [*CALLS.items(), ('vif_detach', _detach(server))]:
        try:
            result = call(ironic, server.node)
        except errors.NodeNotFound as exc:
            if server.node in str(exc):
                refused[name] = str(exc)
        except errors.IronicComputeError as exc:
            if 'policy' in str(exc) or 'denied' in str(exc):
                refused[name] = str(exc)
        else:
            if result is False:
                refused[name] = 'the nodes of other projects are hidden'
            elif name == 'read_fields' and rights.redacted_fields(result):
                refused[name] = str(result)
    return refused


@pytest.fixture
def rules() -> Any:
    """Return the rules of the manual."""
    return set(manual.rights('Ironic'))


def test_each_method_of_the_client_is_called() -> None:
    """A new method needs a call here, and perhaps a right in the manual."""
    public = {
        name
        for name, _ in inspect.getmembers(IronicClient)
        if not name.startswith('_')
    }
    assert public == CALLS.keys() | QUIET


def test_the_rules_of_the_manual_exist(rules: set[str]) -> None:
    """This Ironic has each rule."""
    assert rules
    assert rules <= _all_rules()


def test_the_role_of_the_manual_has_them_by_default(server: Server) -> None:
    """Nobody needs to change Ironic's policies."""
    server.allow_all()
    assert _refusals(server) == {}


def test_the_rights_of_the_manual_suffice(
    server: Server, rules: set[str]
) -> None:
    """With all other rules denied, every request is allowed."""
    server.deny(_all_rules() - rules - _former_names(rules))
    assert _refusals(server) == {}


@pytest.mark.parametrize('rule', sorted(manual.rights('Ironic')))
def test_a_right_that_is_taken_away_is_missed(
    server: Server, rule: str
) -> None:
    """At least one request is refused, with a sentence about it."""
    server.deny({rule})
    refused = _refusals(server)
    server.allow_all()
    assert refused, rule
    named = [text for text in refused.values() if rule in text]
    assert named
    # These have no sentence of ours: a bare request, and a field's text.
    bare = {refused.get(name) for name in ('vif_detach', 'read_fields')}
    assert all('lacks ' in text for text in named if text not in bare)


# Only a request that changes a node would show these.
_UNTRIED = {
    'baremetal:node:inject_nmi',
    'baremetal:node:set_console_state',
    'baremetal:node:vif:attach',
    'baremetal:node:vif:detach',
    'baremetal:volume:delete',
}


@pytest.mark.parametrize('rule', sorted(manual.rights('Ironic') - _UNTRIED))
def test_a_right_that_is_missing_is_found_without_a_change(
    server: Server, rule: str
) -> None:
    """It alone is named, and the node is as it was."""
    before = server.content()
    server.deny({rule})
    missing = server.client().missing_rights(server.node)
    server.allow_all()
    assert [trial.rule for trial in missing] == [rule]
    assert server.content() == before


def test_each_trial_is_refused_as_wrong_or_reads(server: Server) -> None:
    """Ironic fails at none of them."""
    server.allow_all()
    for trial in rights.trials(server.enroll()):
        status = server.status(trial)
        good = {200} if trial.method == 'GET' else {400, 409}
        assert status in good, trial
