# SPDX-License-Identifier: Apache-2.0
"""Translates errors about access to other services, as nova.conf describes it.

A wrong URL of RabbitMQ, or wrong credentials, becomes one sentence that names
the option.
"""

import contextlib
from collections.abc import Iterator

import oslo_messaging
from keystoneauth1 import exceptions as ksa_exc

from ironic_compute import errors


@contextlib.contextmanager
def translated_transport() -> Iterator[None]:
    """Translate oslo.messaging's errors about ``transport_url``.

    :raises errors.ConfigError: for any of them
    """
    try:
        yield
    except oslo_messaging.DriverLoadFailure as exc:
        raise _transport_refused(str(exc)) from exc
    except oslo_messaging.InvalidTransportURL as exc:
        # The text of the error has the URL, and so the password.
        raise _transport_refused('it is no URL') from exc
    except errors.UNKNOWN_REFERENCE as exc:
        raise _transport_refused(errors.REFERENCE_CURE) from exc


@contextlib.contextmanager
def translated_credentials(section: str) -> Iterator[None]:
    """Translate keystoneauth1's errors about the options of a section.

    :param section: such as ``ironic``
    :raises errors.ConfigError: for any of them
    """
    try:
        yield
    except (ksa_exc.NoMatchingPlugin, ksa_exc.OptionError) as exc:
        raise errors.ConfigError(
            f'The credentials below [{section}] auth_type in nova.conf cannot '
            f'be used, correct them: {exc}'
        ) from exc
    except errors.UNKNOWN_REFERENCE as exc:
        raise errors.ConfigError(
            f'An option below [{section}] in nova.conf cannot be used, such '
            f'as the password: {errors.REFERENCE_CURE}'
        ) from exc


@contextlib.contextmanager
def translated_token(section: str) -> Iterator[None]:
    """Translate keystoneauth1's error for a password that is not set.

    It is a bare ``Exception``; each other error is raised as it is.

    :param section: such as ``ironic``
    :raises errors.ConfigError: no password is set
    """
    try:
        yield
    except Exception as exc:
        if type(exc) is not Exception:
            raise
        raise errors.ConfigError(
            f'Keystone gives no token; check what is below [{section}] '
            f'auth_type in nova.conf: {exc}'
        ) from exc


def _transport_refused(why: str) -> errors.ConfigError:
    return errors.ConfigError(
        f'[DEFAULT] transport_url in nova.conf cannot be used, write '
        f'rabbit://USER:PASSWORD@HOST:5672/: {why}'
    )
