# SPDX-License-Identifier: Apache-2.0
"""The DevStack plugin, sourced against stubs of DevStack's functions."""

import pathlib
import subprocess

import pytest

DEVSTACK = pathlib.Path(__file__).resolve().parents[3] / 'devstack'

# Each of DevStack's functions that the plugin may call prints its name.
STUBS = """
set -eu
export DEST=/opt/stack DATA_DIR=/opt/data HOSTNAME=ctl STACK_USER=stack
export NOVA_CPU_CONF=/etc/nova/nova-cpu.conf NOVA_CONF=/etc/nova/nova.conf
export IRONIC_CONF_FILE=/etc/ironic/ironic.conf NOVA_READY_TIMEOUT=120
export PLACEMENT_CONF=/etc/placement/placement.conf
for name in define_plugin disable_service setup_develop iniset \\
    wait_for_compute nova-manage sudo cp; do
    eval "function $name { echo $name \\"\\$@\\"; }"
done
# As in DevStack, what is not enabled is neither started nor stopped.
ENABLED=,
function enable_service { ENABLED+=$1,; echo enable_service "$@"; }
function is_service_enabled { [[ "$ENABLED" == *",$1,"* ]]; }
for name in run_process stop_process; do
    eval "function $name {
        ! is_service_enabled \\"\\$1\\" || echo $name \\"\\$@\\"; }"
done
function get_python_exec_prefix { echo /usr/local/bin; }
function echo_summary { :; }
"""


def run(*phase, agents=1, services=''):
    """Source settings and plugin as stack.sh does; return the calls."""
    script = (
        f'{STUBS}\nIRONIC_COMPUTE_AGENTS={agents}\nENABLED+={services},\n'
        f'source {DEVSTACK}/settings\nsource {DEVSTACK}/plugin.sh "$@"\n'
    )
    done = subprocess.run(
        ['bash', '-c', script, 'stack.sh', *phase, ''],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_settings_replace_nova_compute():
    """The settings disable n-cpu and enable ironic-compute."""
    calls = run('stack', 'pre-install')
    assert 'disable_service n-cpu' in calls
    assert 'enable_service ironic-compute' in calls
    assert 'enable_service ironic-compute-1' in calls
    assert len(calls) == 4


@pytest.mark.parametrize('services', ['placement-api', ''])
def test_placement_gives_no_node_to_two_servers(services):
    """Placement makes one try for each allocation, where it runs here."""
    calls = run('stack', 'post-config', services=services)
    option = 'placement allocation_conflict_retry_count 1'
    call = f'iniset /etc/placement/placement.conf {option}'
    assert (call in calls) == bool(services)


def test_install_takes_the_checkout():
    """The plugin installs its own repository."""
    calls = run('stack', 'install')
    assert 'setup_develop /opt/stack/ironic-compute' in calls


def test_each_agent_has_host_and_state_of_its_own():
    """Three agents have three hosts and three state folders."""
    calls = run('stack', 'post-config', agents=3)
    for host in ('ctl', 'ctl-2', 'ctl-3'):
        conf = f'/etc/ironic-compute/nova-{host}.conf'
        assert f'iniset {conf} DEFAULT host {host}' in calls
        own = f'/etc/ironic-compute/{host}.conf'
        state = f'/opt/data/ironic-compute/{host}'
        assert f'iniset {own} ironic_compute state_path {state}' in calls


def test_ironic_sends_notifications():
    """Ironic sends notifications about nodes."""
    calls = run('stack', 'post-config')
    ironic = 'iniset /etc/ironic/ironic.conf'
    assert f'{ironic} DEFAULT notification_level info' in calls


@pytest.mark.parametrize('agents', [1, 3])
def test_agents_are_started_and_mapped(agents):
    """Every agent is started, and its host is mapped to a cell."""
    calls = run('stack', 'extra', agents=agents)
    started = [c for c in calls if c.startswith('run_process')]
    waited = [c for c in calls if c.startswith('wait_for_compute')]
    assert len(started) == len(waited) == agents
    assert '/usr/local/bin/ironic-compute --config-file' in started[0]
    assert calls[-1].endswith('discover_hosts --by-service')


def test_unstack_stops_all_agents():
    """``unstack`` stops the process of each agent."""
    calls = run('unstack', agents=2)
    assert 'stop_process ironic-compute-1' in calls
    assert 'stop_process ironic-compute-2' in calls


def test_clean_leaves_nothing():
    """``clean`` removes configuration and state."""
    (call,) = [c for c in run('clean') if c.startswith('sudo rm')]
    assert '/etc/ironic-compute' in call
    assert '/opt/data/ironic-compute' in call
