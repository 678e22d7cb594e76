# SPDX-License-Identifier: Apache-2.0
"""The pool's hosts: Services, cell mappings, aggregates, the agent's view."""
