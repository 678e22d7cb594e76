# SPDX-License-Identifier: Apache-2.0
"""The DevStack plugin in DevStack's and Ironic's own scripts.

What is asserted is what changes the machine: which daemon is started when, and
what its configuration files contain at that time.
"""

import subprocess
import sys

import pytest

from tests.unit.devstack.world import ROOT

AGENTS = [f'ironic-compute-{number}' for number in (1, 2, 3)]


def test_agent_runs_in_place_of_nova_compute(stacked):
    """stack.sh ends well, one agent runs and no nova-compute ever did."""
    assert 'ironic-compute-1' in stacked.running
    assert 'ironic-compute-1' in stacked.enabled
    assert not stacked.starts('n-cpu')
    assert 'setup_develop /stack/ironic-compute' in stacked.log


def test_agent_starts_where_nova_compute_would(stacked):
    """The agent starts with Nova, and again after Ironic has nodes."""
    agent = 'start devstack@ironic-compute-1'
    assert stacked.first('start devstack@n-cond') < stacked.first(agent)
    assert stacked.first(agent) < stacked.first('start devstack@ir-api')
    assert stacked.last('baremetal node provide') < stacked.last(agent)
    assert len(stacked.starts('ironic-compute-1')) == 2


def test_nodes_are_there_before_ironic_stops_waiting(stacked):
    """The hosts are mapped before Ironic's plugin waits for the nodes.

    DevStack's own tool maps only hosts that have nodes, and a host gets nodes
    only once it is mapped.
    """
    mapping = stacked.last('discover_hosts --by-service')
    assert stacked.last('start devstack@ironic-compute-1') < mapping
    assert mapping < stacked.first('endpoint list --service placement')
    assert stacked.mapped == {'ctl'}


def test_each_start_has_the_configuration_of_nova_compute(stacked):
    """The files have Ironic's credentials and Placement's at each start."""
    starts = stacked.starts('ironic-compute-1')
    for conf in starts:
        assert conf['DEFAULT']['compute_driver'] == 'ironic.IronicDriver'
        assert conf['DEFAULT']['host'] == 'ctl'
        assert conf['DEFAULT']['transport_url'].endswith('/nova_cell1')
        assert conf['ironic']['auth_type'] == 'password'
        assert conf['placement']['username'] == 'nova'
        assert 'connection' not in conf['database']
        assert 'novncproxy_base_url' in conf['vnc']
    assert starts


def test_local_conf_reaches_the_agent(stacked):
    """The user's sections for nova-cpu.conf and for the agents are merged."""
    for conf in stacked.starts('ironic-compute-1'):
        assert conf['DEFAULT']['sync_power'] == '7'
        assert conf['ironic_compute']['settle_s'] == '9'


def test_agent_has_the_command_folder_of_nova(stacked):
    """The unit finds privsep-helper where nova-compute would."""
    unit = stacked.etc('systemd/system/devstack@ironic-compute-1.service')
    folder = f'{stacked.stack_dir}/data/venv/bin'
    assert unit['Service']['Environment'].startswith(f'"PATH={folder}:')
    assert stacked.arguments('ironic-compute-1')[0] == (
        '/stack/data/venv/bin/ironic-compute'
    )


def test_ironic_notifies_the_agents(stacked):
    """Both sides have one bus, and Ironic has it before it starts."""
    ironic = stacked.etc('ironic/ironic.conf')
    (conf,) = {
        each['ironic_compute']['notification_transport_url']
        for each in stacked.starts('ironic-compute-1')
    }
    notifications = ironic['oslo_messaging_notifications']
    assert ironic['DEFAULT']['notification_level'] == 'info'
    assert notifications['driver'] == 'messagingv2'
    assert notifications['transport_url'] == conf
    assert conf.startswith('rabbit://') and conf.endswith(':5672/')
    (started,) = stacked.starts('ir-cond')
    assert started['DEFAULT']['notification_level'] == 'info'


def test_placement_gives_no_node_to_two_servers(stacked):
    """Placement makes one try for each allocation."""
    options = stacked.etc('placement/placement.conf')['placement']
    assert options['allocation_conflict_retry_count'] == '1'


def test_daemon_accepts_what_devstack_writes(stacked):
    """The agent's own checks pass with the files of its unit."""
    arguments = stacked.arguments('ironic-compute-1')[1:]
    files = [
        f'{stacked.path}{a}' if a.startswith('/') else a for a in arguments
    ]
    program = (
        'import sys\n'
        'from ironic_compute.agent.build import Commands, build_agent\n'
        'from ironic_compute.cmd import daemon\n'
        'daemon.configure(daemon.CONF, sys.argv[1:])\n'
        'commands = Commands(worker=["true"], agent=["true"])\n'
        'build_agent(daemon.CONF, daemon.config.PROG, commands)\n'
        'print(daemon.CONF.host)\n'
    )
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', program, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == 'ctl'


def test_failure_hook_of_devstack_finds_the_agent(stacked):
    """DevStack sends SIGUSR2 to command lines that contain nova-compute.

    The agent writes a report then, and has its workers write theirs.
    """
    command = ' '.join(stacked.arguments('ironic-compute-1'))
    assert 'nova-compute' in command


def test_each_agent_has_host_and_state_of_its_own(stacked_three):
    """Three agents have three hosts, three state folders and one backend."""
    started = [stacked_three.starts(agent)[-1] for agent in AGENTS]
    hosts = [conf['DEFAULT']['host'] for conf in started]
    assert hosts == ['ctl', 'ctl-2', 'ctl-3']
    states = [conf['ironic_compute']['state_path'] for conf in started]
    folder = f'{stacked_three.stack_dir}/data/ironic-compute'
    assert states == [f'{folder}/{host}' for host in hosts]
    backends = {conf['coordination']['backend_url'] for conf in started}
    assert backends == {f'file://{folder}/coordination'}


def test_all_hosts_are_awaited_before_they_are_mapped(stacked_three):
    """Each Service record exists when Nova is told to map the hosts."""
    mapping = stacked_three.first('discover_hosts --by-service')
    for host in ('ctl', 'ctl-2', 'ctl-3'):
        assert stacked_three.first(f'--host {host} --service') < mapping
    assert stacked_three.mapped == {'ctl', 'ctl-2', 'ctl-3'}


def test_agents_have_the_variables_of_nova_compute(stacked_three):
    """What local.conf sets for the unit n-cpu counts for the agents."""
    for agent in AGENTS:
        unit = stacked_three.etc(f'systemd/system/devstack@{agent}.service')
        assert 'OS_ANY=1' in unit['Service']['Environment']


def test_agents_are_watched_by_devstack(stacked_three):
    """The last check of stack.sh knows the agents' units."""
    assert set(AGENTS) <= stacked_three.running
    stacked_three.run_well('call', 'service_check')
    dead = stacked_three.path / 'running/devstack@ironic-compute-2.service'
    dead.unlink()
    assert stacked_three.run('call', 'service_check').status != 0
    dead.touch()


def test_unstack_stops_all_agents(stacked_three):
    """It does so even if local.conf has fewer agents by then."""
    stacked_three.configure({'IRONIC_COMPUTE_AGENTS': 1})
    stacked_three.run_well('unstack')
    assert not stacked_three.running & {*AGENTS, 'n-cpu'}
    assert not stacked_three.enabled & {*AGENTS, 'n-cpu'}


def test_unstack_forgets_the_hosts(new_world):
    """An agent of the next stack.sh adopts no host of this cloud."""
    new_world.configure()
    state = new_world.stack_dir / 'data/ironic-compute'
    (state / 'ctl').mkdir(parents=True)
    (state / 'ctl/known.json').write_text('["ctl", "ctl-2"]')
    new_world.run_well('unstack')
    assert not state.exists()


def test_clean_leaves_nothing(stacked_three):
    """``clean`` removes configuration and state."""
    stacked_three.configure({'IRONIC_COMPUTE_AGENTS': 3})
    stacked_three.run_well('unstack', 'clean')
    assert not (stacked_three.path / 'etc/ironic-compute').exists()
    assert not (stacked_three.stack_dir / 'data/ironic-compute').exists()


@pytest.mark.parametrize(
    ('settings', 'plugins', 'sentence'),
    [
        ({'VIRT_DRIVER': 'fake'}, None, 'needs VIRT_DRIVER=ironic'),
        ({}, ('ironic-compute', 'ironic'), 'must come before'),
        (
            {'ENABLED_SERVICES': 'n-cpu,placement-client'},
            None,
            'do not meet in a file',
        ),
    ],
    ids=['driver', 'order', 'backend'],
)
def test_wrong_settings_end_stack_early(
    new_world, settings, plugins, sentence
):
    """What cannot work is said before anything is installed."""
    new_world.configure(settings, plugins or ('ironic', 'ironic-compute'))
    result = new_world.run('stack')
    assert result.status != 0
    assert sentence in result.output
    assert 'install_libs' not in new_world.log


def test_machine_without_n_cpu_has_no_agent(new_world):
    """As on the subnodes of Ironic's own jobs, no compute daemon starts."""
    new_world.configure(lines=['disable_service n-cpu'])
    new_world.write_etc('nova/nova.conf', '')
    new_world.run_well('call', 'start_nova_compute')
    assert not new_world.running


def test_local_conf_can_have_nova_compute(stock):
    """With its service disabled, the plugin changes nothing."""
    by_stack = stock.log[: stock.first('openstack complete')]
    started = [line for line in by_stack if line.startswith('start ')]
    assert any('devstack@n-cpu' in line for line in started)
    assert not any('ironic-compute' in line for line in started)
