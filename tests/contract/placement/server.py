# SPDX-License-Identifier: Apache-2.0
"""The real Placement as a program: many threads, any database, no Keystone.

``python -m tests.contract.placement.server PORT CONFIG_FILE``
"""

import socketserver
import sys
from wsgiref import simple_server

from oslo_config import cfg
from placement import conf as placement_conf
from placement import db_api, deploy
from placement.db.sqlalchemy import migration


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True


class _Handler(simple_server.WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log no request."""


def main(port: str, config_file: str) -> None:
    """Serve until killed."""
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf([], project='placement', default_config_files=[config_file])
    db_api.configure(conf)
    migration.create_schema(db_api.get_placement_engine())
    application = deploy.loadapp(conf)
    with simple_server.make_server(
        '127.0.0.1', int(port), application, _Server, _Handler
    ) as server:
        server.serve_forever()


if __name__ == '__main__':
    main(*sys.argv[1:])
