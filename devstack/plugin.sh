#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# DevStack plugin: ironic-compute in place of nova-compute for Ironic.
#
# enable_plugin ironic https://opendev.org/openstack/ironic
# enable_plugin ironic-compute https://opendev.org/openstack/ironic-compute

IRONIC_COMPUTE_PLUGIN=$(dirname "${BASH_SOURCE[0]}")

source "$IRONIC_COMPUTE_PLUGIN/lib/ironic-compute"

if is_ironic_compute_on; then
    enable_ironic_compute_agents
    # stack.sh and Ironic's plugin call the functions that this replaces.
    override_nova_compute
    if [[ "$1" == "stack" && "$2" == "pre-install" ]]; then
        check_ironic_compute
    elif [[ "$1" == "stack" && "$2" == "install" ]]; then
        echo_summary "Installing ironic-compute"
        install_ironic_compute
    elif [[ "$1" == "stack" && "$2" == "post-config" ]]; then
        echo_summary "Configuring ironic-compute"
        configure_ironic_compute
    fi
    if [[ "$1" == "unstack" ]]; then
        stop_ironic_compute
        forget_ironic_compute
    fi
    if [[ "$1" == "clean" ]]; then
        cleanup_ironic_compute
    fi
fi
