# SPDX-License-Identifier: Apache-2.0
"""The error classes: which of them allow a retry."""

import inspect
import os

import pytest

from hashring import errors


def test_only_an_unavailable_backend_is_tried_again() -> None:
    """A wrong configuration is never retried; a failed request may be."""
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass)}
    retriable = {k for k in kinds if issubclass(k, errors.Retriable)}
    assert retriable == {
        errors.Retriable,
        errors.BackendUnavailable,
        errors.NotInGroup,
        errors.RequestRefused,
        errors.UserRefused,
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


@pytest.mark.parametrize(
    ('reason', 'cure'),
    [
        ('[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert', 'cert_cert='),
        ('[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13', 'cert_cert='),
        ('[SSL: CERTIFICATE_VERIFY_FAILED] expired', 'renew its certificate'),
        ('503 Server Error: Service Unavailable', 'look into its log'),
        ('Connection refused', 'check that it runs'),
    ],
)
def test_cure_follows_from_the_reason(reason: str, cure: str) -> None:
    """A backend that demands a certificate was said to be out of reach."""
    assert cure in errors.BackendUnavailable(reason).cure


@pytest.mark.parametrize(
    ('reason', 'cure'),
    [
        ('etcdserver: mvcc: database space exceeded', 'disarm its alarm'),
        ('etcdserver: permission denied', 'check the rights'),
    ],
)
def test_backend_that_refuses_is_not_said_to_be_away(
    reason: str, cure: str
) -> None:
    """It runs, so that nobody need look for it."""
    refusal = errors.RequestRefused(reason)
    assert refusal.symptom == 'refuses what is asked'
    assert cure in refusal.cure
