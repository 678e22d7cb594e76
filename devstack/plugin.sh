#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DevStack plugin: ironic-compute in place of nova-compute for Ironic.
#
# enable_plugin ironic https://opendev.org/openstack/ironic
# enable_plugin ironic-compute https://opendev.org/openstack/ironic-compute

IRONIC_COMPUTE_PLUGIN=$(dirname "${BASH_SOURCE[0]}")
IRONIC_COMPUTE_BIN_DIR=$(get_python_exec_prefix)

source "$IRONIC_COMPUTE_PLUGIN/lib/ironic-compute"

if is_service_enabled ironic-compute; then
    if [[ "$1" == "stack" && "$2" == "install" ]]; then
        echo_summary "Installing ironic-compute"
        install_ironic_compute
    elif [[ "$1" == "stack" && "$2" == "post-config" ]]; then
        echo_summary "Configuring ironic-compute"
        configure_ironic_compute
    elif [[ "$1" == "stack" && "$2" == "extra" ]]; then
        echo_summary "Starting ironic-compute"
        start_ironic_compute
        map_ironic_compute_hosts
    fi
    if [[ "$1" == "unstack" ]]; then
        stop_ironic_compute
    fi
    if [[ "$1" == "clean" ]]; then
        cleanup_ironic_compute
    fi
fi
