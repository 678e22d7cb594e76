# SPDX-License-Identifier: Apache-2.0
"""How the pages are built."""

project = 'ironic-compute'
copyright = 'ironic-compute developers'
extensions = ['reno.sphinxext']
html_theme = 'furo'
