# SPDX-License-Identifier: Apache-2.0
"""Zuul's rules for job definitions, as far as ours use them.

The attributes are those of Zuul's documentation, "Job" and "Project". A job's
variables are merged with those of its parents, in dictionaries of any depth.
"""

import copy
import functools
import pathlib

import yaml

from tests.unit.devstack.world import REFERENCE, ROOT

_STRING = {'type': 'string'}
_FLAG = {'type': 'boolean'}
_NUMBER = {'type': 'integer'}
_VARIABLES = {'type': 'object'}
_OF_HOSTS = {'type': 'object', 'additionalProperties': _VARIABLES}


def _list_of(*kinds):
    """Zuul takes one value in place of a list of one."""
    return {'anyOf': [*kinds, {'type': 'array', 'items': {'anyOf': [*kinds]}}]}


def _object(required, **properties):
    return {
        'type': 'object',
        'properties': properties,
        'required': list(required),
        'additionalProperties': False,
    }


_STRINGS = _list_of(_STRING)
_PROJECT = _object(['name'], **{'name': _STRING, 'override-checkout': _STRING})
_ROLE = _object(['zuul'], zuul=_STRING, name=_STRING)
_SECRET = _object(
    ['name', 'secret'],
    **{'name': _STRING, 'secret': _STRING, 'pass-to-parent': _FLAG},
)
_DEPENDENCY = _object(['name'], name=_STRING, soft=_FLAG)
_SEMAPHORE = _object(['name'], **{'name': _STRING, 'resources-first': _FLAG})
_PLAYBOOK = _object(['name'], name=_STRING, semaphores=_STRINGS, cleanup=_FLAG)
_REGEX = _object(['regex'], regex=_STRING, negate=_FLAG)
_PLAYBOOKS = _list_of(_STRING, _PLAYBOOK)
_PATTERNS = _list_of(_STRING, _REGEX)

_ATTRIBUTES = {
    'parent': {'type': ['string', 'null']},
    'description': _STRING,
    'variant-description': _STRING,
    'nodeset': {'type': ['string', 'object']},
    **dict.fromkeys(
        ('final', 'protected', 'abstract', 'intermediate', 'voting'), _FLAG
    ),
    **dict.fromkeys(
        (
            'hold-following-changes',
            'post-review',
            'match-on-config-updates',
            'ansible-split-streams',
        ),
        _FLAG,
    ),
    **dict.fromkeys(
        ('pre-timeout', 'timeout', 'post-timeout', 'attempts'), _NUMBER
    ),
    **dict.fromkeys(
        ('success-message', 'failure-message', 'override-checkout'), _STRING
    ),
    **dict.fromkeys(
        ('tags', 'provides', 'requires', 'allowed-projects', 'failure-output'),
        _STRINGS,
    ),
    **dict.fromkeys(('pre-run', 'run', 'post-run'), _PLAYBOOKS),
    **dict.fromkeys(('files', 'irrelevant-files', 'branches'), _PATTERNS),
    **dict.fromkeys(('vars', 'extra-vars'), _VARIABLES),
    **dict.fromkeys(('host-vars', 'group-vars'), _OF_HOSTS),
    'roles': {'type': 'array', 'items': _ROLE},
    'required-projects': _list_of(_STRING, _PROJECT),
    'secrets': _list_of(_STRING, _SECRET),
    'dependencies': _list_of(_STRING, _DEPENDENCY),
    'semaphores': _list_of(_STRING, _SEMAPHORE),
    'include-vars': _list_of(_STRING, _VARIABLES),
    'ansible-version': {'type': ['string', 'number']},
    'workspace-scheme': {'enum': ['golang', 'flat', 'unique']},
    'workspace-checkout': {'enum': [True, False, 'auto']},
    'deduplicate': {'enum': [True, False, 'auto']},
    'attribute-control': {'type': 'object'},
    'image-build-name': _STRING,
}
_JOB = _object(['name'], name=_STRING, **_ATTRIBUTES)
_PIPELINE = _object(
    [],
    **{
        'queue': _STRING,
        'debug': _FLAG,
        'fail-fast': _FLAG,
        'jobs': {
            'type': 'array',
            'items': {
                'anyOf': [
                    _STRING,
                    {
                        'type': 'object',
                        'minProperties': 1,
                        'maxProperties': 1,
                        'additionalProperties': _object([], **_ATTRIBUTES),
                    },
                ]
            },
        },
    },
)
_PROJECT_STANZA = {
    'type': 'object',
    'properties': {
        'name': _STRING,
        'description': _STRING,
        'templates': {'type': 'array', 'items': _STRING},
        'queue': _STRING,
        'default-branch': _STRING,
        'merge-mode': _STRING,
        'vars': _VARIABLES,
    },
    'patternProperties': {
        '^(check|gate|post|experimental|periodic.*)$': _PIPELINE
    },
    'additionalProperties': False,
}
FILE = {
    'type': 'array',
    'items': {
        'oneOf': [
            _object(['job'], job=_JOB),
            _object(['project'], project=_PROJECT_STANZA),
        ]
    },
}


def as_list(value):
    """Return a value of which Zuul takes one or a list as a list."""
    return value if isinstance(value, list) else [value]


def load_files(folder: pathlib.Path) -> dict[str, list]:
    """Return the contents of all definitions in a folder, by file."""
    files = sorted(folder.glob('*.yaml'))
    return {file.name: yaml.safe_load(file.read_text()) for file in files}


def _items(folder: pathlib.Path, kind: str) -> dict[str, dict]:
    items = [item for each in load_files(folder).values() for item in each]
    return {item[kind]['name']: item[kind] for item in items if kind in item}


@functools.cache
def own_jobs() -> dict[str, dict]:
    """Return our jobs by name."""
    return _items(ROOT / 'zuul.d', 'job')


@functools.cache
def ironic_jobs() -> dict[str, dict]:
    """Return Ironic's jobs by name."""
    return _items(REFERENCE / 'ironic/zuul.d', 'job')


def ironic_nodesets() -> set[str]:
    """Return the names of Ironic's nodesets."""
    return set(_items(REFERENCE / 'ironic/zuul.d', 'nodeset'))


def inherited(name: str, attribute: str) -> dict:
    """Return the variables of a job, with those of its parents below them."""
    job = {**ironic_jobs(), **own_jobs()}.get(name)
    if job is None:
        return {}
    below = inherited(job['parent'], attribute)
    return _merged(below, job.get(attribute, {}))


def _merged(below: dict, above: dict) -> dict:
    result = copy.deepcopy(below)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = value
    return result
