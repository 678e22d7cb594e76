# SPDX-License-Identifier: Apache-2.0
"""What our daemons cost, and what stock nova-compute costs, in one cloud.

``python -m benchmarks`` runs both in turn in the cloud of ``devstack/cloud``
and writes a table and a plot. All figures are counted: requests in the access
logs of the APIs, RPCs in the log of the compute process, CPU and memory in
``/proc``, of the compute process and of all servers.
"""
