# SPDX-License-Identifier: Apache-2.0
"""What a large pool costs, in virtual time: ``python -m benchmarks scale``.

The agents, and the modules of the workers that ``tests/simulation`` runs, are
the real ones. Ironic, Placement, nova-conductor, RabbitMQ and the coordination
backend are fakes whose answers take as long as was measured with real ones
(see ``services``). Nothing fails. Therefore an hour of fifty daemons takes
minutes on one processor, and its requests and virtual seconds are the same in
each run. It needs neither a cloud nor a network.
"""
