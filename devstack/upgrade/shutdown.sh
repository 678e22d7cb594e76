#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Grenade: stop the agents of the old side, if it has any. nova-compute is
# stopped with Nova.

set -o errexit

source "$GRENADE_DIR/grenaderc"
source "$GRENADE_DIR/functions"
source "$BASE_DEVSTACK_DIR/stackrc"
source "$BASE_DEVSTACK_DIR/lib/tls"
source "$BASE_DEVSTACK_DIR/lib/apache"
source "$BASE_DEVSTACK_DIR/lib/nova"

source "$(dirname "$0")/../lib/ironic-compute"

set -o xtrace

stop_ironic_compute
