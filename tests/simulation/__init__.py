# SPDX-License-Identifier: Apache-2.0
"""The real modules in a world that is made from one seed."""
