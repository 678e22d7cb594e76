# SPDX-License-Identifier: Apache-2.0
"""The old bugs and options that are tried on a real cloud."""

import nova.conf
from keystoneauth1 import loading
from onemachine import bugs, config, options
from onemachine.computes import Computes
from onemachine.control import Cloud

from ironic_compute.ironic_api.client import UNUSED
from ironic_compute.ironic_api.states import Meaning, ProvisionState


def test_states_are_ironics_own():
    """Each tried state exists in Ironic, except the invented one."""
    known = {state.value: state.meaning for state in ProvisionState}
    meanings = {known[state] for state in bugs.STATES}
    assert meanings == {Meaning.IN_USE, Meaning.ON_ITS_WAY, Meaning.FAILED}
    assert bugs.INVENTED not in known


def test_states_that_lost_their_servers_are_tried():
    """Servicing and a held deploy are tried (bug 2131960)."""
    held = {'deploy hold', 'service hold', 'service wait', 'service failed'}
    assert held <= set(bugs.STATES)


def _credentials():
    plugin = loading.get_auth_plugin_conf_options('password')
    return [option.dest for option in plugin]


def test_each_option_of_nova_is_set():
    """Each option of Nova's group is set; a new option would be found."""
    # Not the options of CONF, which other tests extend.
    (listed,) = nova.conf.ironic.list_opts().values()
    known = [option.dest for option in listed]
    assert options.forgotten(known, _credentials()) == set()
    assert options.forgotten([*known, 'new'], _credentials()) == {'new'}


def test_each_option_without_effect_is_set():
    """Each option without effect is set, so the notice must name it."""
    assert set(UNUSED) <= set(options.values('http://ironic'))


def test_hosts_get_further_options(layout):
    """Further options reach a host in existing and in new sections."""
    more = {'ironic': {'shard': 's'}, 'ironic_auth': {'username': 'nova'}}
    one = Computes(Cloud(layout), nova=more).nova_conf('c1')
    assert 'shard = s' in one
    assert '[ironic_auth]\nusername = nova' in one
    plain = config.nova(layout, 'c1')
    assert one.startswith(config.render({'DEFAULT': plain['DEFAULT']}))
    assert f'auth_url = {plain["ironic"]["auth_url"]}' in one
