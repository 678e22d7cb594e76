# SPDX-License-Identifier: Apache-2.0
"""Work that a crash or a lost message interrupted is found and finished."""
