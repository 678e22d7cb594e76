# SPDX-License-Identifier: Apache-2.0
"""Mutation run: small defects, one at a time, that the tests must detect."""
