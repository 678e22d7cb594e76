# SPDX-License-Identifier: Apache-2.0
"""Random walks through told lists: one worker lists all nodes for its pool.

In the lives of the simulation, a worker restarts or reads a list of its own
before anything wrong with a told list can show. A walk has nothing else: no
servers, no agents, a minute between two lists, and workers that restart
rarely. Real are the feed, with its lists and messages, and the ownership of
nodes; the threads of a worker are steps, of which chance takes one after the
other, also while a request of another thread is on its way.
"""
