# SPDX-License-Identifier: Apache-2.0
"""How the pages are built."""

project = 'ironic-compute'
copyright = 'ironic-compute developers'
extensions = ['openstackdocstheme']
html_theme = 'openstackdocs'
openstackdocs_repo_name = 'openstack/ironic-compute'
openstackdocs_auto_name = False
