# SPDX-License-Identifier: Apache-2.0
"""What Ironic lets a client ask for in which provision state.

The part of ``ironic.common.state_machine`` that matters to a compute daemon,
written down so that tests need no Ironic; a contract test compares it with
the installed one.
"""

from collections.abc import Mapping

# Aborting is possible in more states, by later versions of the API and for
# some hardware.
# The verb a client sends -> the state now -> (state at once, in the end).
ALLOWED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    'active': dict.fromkeys(
        ('available', 'deploy failed'), ('deploying', 'active')
    ),
    'rebuild': dict.fromkeys(
        ('active', 'deploy failed', 'error'), ('deploying', 'active')
    ),
    'deleted': dict.fromkeys(
        (
            'active',
            'deploy failed',
            'wait call-back',
            'error',
            'rescue',
            'rescue wait',
            'rescue failed',
            'unrescue failed',
            'service failed',
            'service wait',
        ),
        ('deleting', 'cleaning'),
    ),
    'rescue': dict.fromkeys(
        (
            'active',
            'rescue',
            'rescue failed',
            'service failed',
            'unrescue failed',
        ),
        ('rescuing', 'rescue'),
    ),
    'unrescue': dict.fromkeys(
        ('rescue', 'rescue failed', 'unrescue failed'),
        ('unrescuing', 'active'),
    ),
    'abort': {
        'deploy hold': ('deploy failed', 'deploy failed'),
        **dict.fromkeys(
            ('clean wait', 'clean hold'), ('clean failed', 'clean failed')
        ),
        **dict.fromkeys(
            ('service wait', 'service hold'),
            ('service failed', 'service failed'),
        ),
        'rescue wait': ('rescue failed', 'rescue failed'),
        'service failed': ('active', 'active'),
    },
}

# Ironic works on the node, and holds its lock.
WORKING = frozenset(
    {
        'adopting',
        'cleaning',
        'deleting',
        'deploying',
        'inspecting',
        'rescuing',
        'servicing',
        'unrescuing',
        'verifying',
    }
)

# A patch of the node is a conflict: a transition is in progress.
IN_TRANSITION = frozenset(
    {
        'adopting',
        'clean hold',
        'clean wait',
        'cleaning',
        'deleting',
        'deploy hold',
        'deploying',
        'inspecting',
        'rescue wait',
        'rescuing',
        'service wait',
        'servicing',
        'unrescuing',
        'wait call-back',
    }
)

# Power is refused.
NO_POWER = frozenset({'cleaning', 'clean wait'})

# A node may be deleted, and a volume target though it runs.
MAY_GO = frozenset({'manageable', 'enroll', 'adopt failed'})
