# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in hashring, with one root.

Foreign exceptions (tooz, its drivers, the operating system) stop at the
module that talks to them; what leaves it is one of these. `ConfigError`
carries one sentence for the operator that names the option and the cure.
`Retriable` is a mixin: whoever holds such an error may try again.
"""

# The exit status of a daemon whose configuration is wrong (sysexits.h).
EX_CONFIG = 78


class HashringError(Exception):
    """The root of all errors of this package."""


class Retriable:
    """Mixin: the same call may succeed later."""


class ConfigError(HashringError):
    """The configuration cannot work; str() is the operator's sentence."""


class BackendRefused(ConfigError):
    """`[coordination] backend_url` names nothing we can use."""


class StateDirRefused(ConfigError):
    """The state folder cannot be used, or another agent uses it."""


class BackendUnavailable(HashringError, Retriable):
    """The coordination backend did not do what it was asked."""


class NotInGroup(BackendUnavailable):
    """The backend does not know our group, or not us in it."""


class MalformedMember(HashringError):
    """A member's capabilities cannot be read; it is left out, once."""


class InvalidTransition(HashringError):
    """A mistake of ours: this signal has no meaning in this phase."""
