# SPDX-License-Identifier: Apache-2.0
"""A real OpenStack with Ironic on one machine, from packages.

All state is in one folder, all servers listen on 127.0.0.1 only, and every
started process is stopped by its pid. The modules that ``cli`` imports need
only the standard library; ``openstack``, ``story`` and ``checks`` run in the
cloud's own virtual environment.
"""
