# SPDX-License-Identifier: Apache-2.0
"""A night on call: clouds that are broken on purpose, for an operator to mend.

Whoever plays the operator does not read this folder, because it has the
causes.
"""
