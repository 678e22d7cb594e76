# SPDX-License-Identifier: Apache-2.0
"""Does once in a process what Placement would do anew for each test.

The functional tests install this in their fixtures. Placement's tables, its
seven hundred traits and the check of its own JSON schemas were a third of the
time of a test's set-up, and are the same in all tests.
"""

import types
from typing import Any

import fixtures
import jsonschema
import jsonschema.validators
from placement import db_api
from placement.objects import resource_class, trait
from placement.tests import fixtures as placement_fixtures

_generate = placement_fixtures.Database.generate_schema_create_all
# The SQL of a new database of Placement, once there was one.
_dump: list[str] = []
_validators: dict[int, Any] = {}


class ReusePlacement(fixtures.Fixture):  # type: ignore[misc]
    """Fills Placement's database from a copy, and trusts its schemas."""

    def _setUp(self) -> None:
        self.useFixture(
            fixtures.MonkeyPatch(
                'placement.tests.fixtures.Database.generate_schema_create_all',
                _generate_or_copy,
            )
        )
        quick = types.SimpleNamespace(**vars(jsonschema))
        quick.validate = _validate
        self.useFixture(
            fixtures.MonkeyPatch('placement.util.jsonschema', quick)
        )


def _generate_or_copy(self: Any, engine: Any) -> None:
    """Make the database; from the second time on by the SQL of the first."""
    if not _dump:
        _generate(self, engine)
        with engine.connect() as connection:
            _dump.append(''.join(connection.connection.iterdump()))
        return
    with engine.connect() as connection:
        connection.connection.executescript(_dump[0])
    reset = db_api.placement_context_manager.patch_engine(engine)
    self.addCleanup(reset)
    self.addCleanup(self.cleanup)
    trait._TRAITS_SYNCED = True
    resource_class._RESOURCE_CLASSES_SYNCED = True


def _validate(instance: Any, schema: Any, **options: Any) -> None:
    """Validate as jsonschema does, but check each schema once only."""
    checker = options.get('format_checker')
    kept = _validators.get(id(schema))
    if kept is None or kept.schema is not schema:
        cls = jsonschema.validators.validator_for(schema)
        cls.check_schema(schema)
        kept = _validators[id(schema)] = cls(schema, format_checker=checker)
    error = jsonschema.exceptions.best_match(kept.iter_errors(instance))
    if error is not None:
        raise error
