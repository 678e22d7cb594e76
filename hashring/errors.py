# SPDX-License-Identifier: Apache-2.0
"""The exceptions of hashring.

The modules that call tooz or the operating system translate foreign
exceptions into these. The message of a `ConfigError` is for the operator and
names the option and the cure. A call that raised a `Retriable` error may be
made again.
"""

# The exit status of a daemon whose configuration is wrong (sysexits.h).
EX_CONFIG = 78

# The text of etcd's error when it has reached its quota.
NO_SPACE = 'database space exceeded'


class HashringError(Exception):
    """The root of all errors of this package."""


class Retriable:
    """Mixin of errors after which the same call may succeed later."""


class ConfigError(HashringError):
    """The configuration cannot work; the message is for the operator."""


class BackendRefused(ConfigError):
    """`[coordination] backend_url` names no usable backend."""


class StateDirRefused(ConfigError):
    """The state directory is unwritable, or another agent uses it."""


class BackendUnavailable(HashringError, Retriable):
    """A request to the coordination backend failed."""

    symptom = 'does not answer'
    """What the backend does, in a sentence about it."""

    @property
    def cure(self) -> str:
        """What the operator can do about it."""
        if 'CERTIFICATE_VERIFY_FAILED' in str(self):
            return (
                'renew its certificate, or correct the one of its issuer in '
                'the URL'
            )
        if 'ALERT' in str(self) and 'CERTIFICATE' in str(self):
            # etcd; Redis and ZooKeeper only end the connection.
            return (
                'name a client certificate that it accepts in the URL: '
                'cert_cert=FILE&cert_key=FILE'
            )
        if 'Service Unavailable' in str(self):
            # etcd's gateway runs, and cannot connect to etcd.
            return 'look into its log'
        return 'check that it runs and can be reached from here'


class RequestRefused(BackendUnavailable):
    """The backend works, and has refused this request, e.g. without space."""

    symptom = 'refuses what is asked'

    @property
    def cure(self) -> str:
        """What the operator can do about it."""
        if NO_SPACE in str(self):
            return 'compact and defragment it, then disarm its alarm'
        return 'look into its log, and check the rights of the user in the URL'


class UserRefused(BackendUnavailable):
    """The backend works, and its entries are not for the user of the URL."""

    symptom = 'refuses the user of the URL'

    @property
    def cure(self) -> str:
        """What the operator can do about it."""
        return 'compare the user and the password with those of the daemons'


class NotInGroup(BackendUnavailable):
    """The group does not exist, or this agent is not a member of it."""


class MalformedMember(HashringError):
    """The capabilities of a group member cannot be parsed."""


class InvalidTransition(HashringError):
    """A bug in hashring: this phase of a host does not allow this signal."""
