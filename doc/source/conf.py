# SPDX-License-Identifier: Apache-2.0
"""How the pages are built; the references come from the code itself."""

from typing import Any

from cliff import sphinxext

project = 'ironic-compute'
copyright = 'ironic-compute developers'
extensions = ['oslo_config.sphinxext', 'cliff.sphinxext']
html_theme = 'furo'
html_title = 'ironic-compute'
html_copy_source = False
# The options of cliff's own formatters are the same for each command.
autoprogram_cliff_ignored = ['--help']
# Addresses of examples (RFC 2606, RFC 5737).
linkcheck_ignore = [
    r'https?://([^/]+\.)?example\.(com|net|org)\b',
    r'https?://192\.0\.2\.',
]


class Commands(sphinxext.AutoprogramCliffDirective):
    """Documents the commands that ``ControlApp`` has in itself.

    cliff's own directive finds commands by entry points.
    """

    def _load_commands(self) -> dict[str, Any]:
        from ironic_compute.cmd.ctl import ControlApp

        manager = ControlApp().command_manager
        names = sorted(name for name in manager.commands if ' ' in name)
        return {name: manager.find_command(name.split())[0] for name in names}


def setup(app: Any) -> None:
    """Add the directive ``computectl-commands``."""
    app.add_directive('computectl-commands', Commands)
