"""A pytest plugin in the process of one file: what each test did, one JSON object a line, in the file PEERS_RECORD.

Written test by test, so that what a process did before it hung or died is known. Further variables, from peers.yaml:
PEERS_RUN_SKIPPED, a pattern of tests whose skip marks are taken off; PEERS_LEAVE_OUT, patterns of tests that are not
run; PEERS_RANKS, most ranks of a test of MindSpeed's class DistributedTest; PEERS_PRELOAD, modules that its ranks
inherit; PEERS_ARGUMENTS, sys.argv of all.
"""

import fnmatch
import json
import multiprocessing
import os
import sys

import pytest

# MindSpeed's tests start up to 8 ranks with the start method forkserver: what every rank imports is imported once.
multiprocessing.set_forkserver_preload(json.loads(os.environ.get("PEERS_PRELOAD", "[]")))

_under_way = {}


def _write(**row):
    with open(os.environ["PEERS_RECORD"], "a") as file:
        file.write(json.dumps(row) + "\n")


def _name(nodeid):
    return nodeid.partition("::")[2]


def _selected(item, patterns):
    return any(fnmatch.fnmatchcase(_name(item.nodeid), pattern) for pattern in patterns)


def pytest_configure():
    """The command line that MindSpeed's adaptor reads at its import, here and in the ranks."""
    arguments = json.loads(os.environ.get("PEERS_ARGUMENTS", "[]"))
    if arguments:
        sys.argv[1:] = arguments


def pytest_collection_modifyitems(items):
    """Leave tests out, take off skip marks and cap ranks, where peers.yaml says so."""
    left_out = json.loads(os.environ.get("PEERS_LEAVE_OUT", "[]"))
    for item in [item for item in items if _selected(item, left_out)]:
        items.remove(item)
        _write(test=_name(item.nodeid), outcome="left out", message="")
    for item in items:
        if _selected(item, [os.environ.get("PEERS_RUN_SKIPPED", "")]):
            for node in item.listchain():
                node.own_markers = [mark for mark in node.own_markers if mark.name not in ("skip", "skipif")]
    ranks = int(os.environ.get("PEERS_RANKS", 0))
    for cls in {item.cls for item in items if ranks and isinstance(getattr(item.cls, "world_size", None), int)}:
        _cap(cls, min(cls.world_size, ranks))


def _cap(cls, ranks):
    """Set on every instance as well: instances travel to the ranks, which import the class anew."""
    cls.world_size, original = ranks, cls.__init__

    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.world_size = ranks

    cls.__init__ = __init__


def pytest_collectreport(report):
    """A file that cannot be imported, or that skips itself, has no tests but one line."""
    if report.failed:
        _write(test="(collection)", outcome="failed", message=_last_line(report))
    elif report.skipped:
        _write(test="(collection)", outcome="skipped", message=_message(report))


def pytest_runtest_logstart(nodeid):
    """What is begun and never ended is what hung."""
    _write(test=_name(nodeid), outcome="begun", message="")


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """One line a test once it is torn down; what failed first counts."""
    test = _under_way.setdefault(report.nodeid, {"outcome": "passed", "message": ""})
    if report.outcome != "passed" and test["outcome"] == "passed":
        test.update(outcome="skipped" if report.skipped else "failed", message=_message(report))
    if report.when == "teardown":
        _write(test=_name(report.nodeid), **_under_way.pop(report.nodeid))


def _message(report):
    """Upstream's words of a skip, the error of a failure."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash else _last_line(report)


def _last_line(report):
    return str(report.longrepr).strip().rpartition("\n")[2].removeprefix("E").strip()
