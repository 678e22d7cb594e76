#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Grenade: replace the nova-compute that Nova's and Ironic's upgrades have
# started by agents.

echo "*********************************************************************"
echo "Begin $0"
echo "*********************************************************************"

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
GetDistro

source "$TARGET_DEVSTACK_DIR/stackrc"
source "$TARGET_DEVSTACK_DIR/lib/tls"
source "$TARGET_DEVSTACK_DIR/lib/apache"
source "$TARGET_DEVSTACK_DIR/lib/database"
source "$TARGET_DEVSTACK_DIR/lib/rpc_backend"
source "$TARGET_DEVSTACK_DIR/lib/keystone"
source "$TARGET_DEVSTACK_DIR/lib/nova"
source "$TARGET_DEVSTACK_DIR/lib/placement"

IRONIC_COMPUTE_PLUGIN=$(cd "$(dirname "$0")/.." && pwd)
source "$IRONIC_COMPUTE_PLUGIN/settings"
source "$IRONIC_COMPUTE_PLUGIN/lib/ironic-compute"
source "$DEST/ironic/devstack/lib/ironic"

# Start a service again that was started before its configuration changed.
function restart_if_enabled {
    local unit="devstack@$1.service"
    if $SYSTEMCTL is-enabled "$unit"; then
        $SYSTEMCTL restart "$unit"
    fi
}

set -o xtrace

enable_ironic_compute_agents
override_nova_compute
install_ironic_compute
configure_ironic_compute
for service in placement-api ir-api ir-cond; do
    restart_if_enabled "$service"
done
start_nova_compute
ensure_services_started ironic-compute-1

set +o xtrace
echo "*********************************************************************"
echo "SUCCESS: End $0"
echo "*********************************************************************"
