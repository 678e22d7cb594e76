# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of our daemons and of stock nova-compute in the same cloud.

The *subject* of a measurement is one of the two, called *ours* and *stock* in
the results; a benchmark has several *parts*, for example builds or a restart.

``python -m benchmarks`` runs both in turn in the cloud of ``devstack/cloud``
and writes a table and a plot. All figures are counted: requests in the access
logs of the APIs, RPCs in the log of the compute process, and CPU and memory,
of the compute process and of all servers, in ``/proc``.
"""
