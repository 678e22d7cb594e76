# SPDX-License-Identifier: Apache-2.0
"""A real OpenStack with Ironic on one machine, from packages.

All state is under one folder, everything listens on 127.0.0.1 alone, and what
was started is stopped by its pid. Modules up to ``cli`` need nothing but the
standard library; ``openstack``, ``story`` and ``checks`` run in the cloud's
own virtual environment.
"""
