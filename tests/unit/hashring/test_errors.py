# SPDX-License-Identifier: Apache-2.0
"""The error classes: which of them allow a retry."""

import inspect
import os

from hashring import errors


def test_only_an_unavailable_backend_is_tried_again() -> None:
    """A wrong configuration is never retried; a failed request may be."""
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    retriable = {k for k in kinds if issubclass(k, errors.Retriable)}
    assert retriable == {
        errors.Retriable,
        errors.BackendUnavailable,
        errors.NotInGroup,
    }
    assert {k for k in kinds if issubclass(k, errors.ConfigError)} == {
        errors.ConfigError,
        errors.BackendRefused,
        errors.StateDirRefused,
    }


def test_every_error_has_one_base_class() -> None:
    """A caller can catch all errors of the package as ``HashringError``."""
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    others = {k for k in kinds if not issubclass(k, errors.HashringError)}
    assert others == {errors.Retriable}


def test_exit_status_of_a_wrong_configuration_is_that_of_sysexits() -> None:
    """A service manager knows the status from sysexits.h."""
    assert errors.EX_CONFIG == os.EX_CONFIG
