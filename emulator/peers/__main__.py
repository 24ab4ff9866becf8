"""python -m emulator.peers --root DIR: run the peers' tests, print the table.

DIR holds the source trees MindSpeed, Megatron-LM and vllm-ascend. Exit code 0: all passes or has its reason; 1: a test
fails without one, or a reason is stale; 2: the tests could not be run.
"""

import argparse
import concurrent.futures
import fnmatch
import signal
import subprocess
import sys
from pathlib import Path

from emulator import site
from emulator.device.build import BuildError
from emulator.peers import known, packages, report, suites

CATALOGUE = Path(__file__).resolve().parents[1] / "peers.yaml"
LIMIT = 600


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (known.PeersError, LookupError, site.SiteError, BuildError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:
        print(f"peers: {error}\n{error.stderr.decode()[-2000:]}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m emulator.peers", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="folder with the source trees")
    parser.add_argument("--only", default="*", help="pattern of files, as fnmatch has it; it may begin anywhere")
    parser.add_argument("--json", action="store_true", help="one JSON document in place of the table")
    parser.add_argument("--jobs", type=int, default=1, help="files at a time; a file of MindSpeed's has up to 8 ranks")
    parser.add_argument("--timeout", type=float, default=LIMIT, help="seconds a file may take; peers.yaml may say more")
    parser.add_argument("--logs", type=Path, help="folder for the output of every file")
    parser.add_argument("--catalogue", type=Path, default=CATALOGUE, help="another peers.yaml")
    return parser


def _run(options: argparse.Namespace) -> int:
    catalogue = known.load(options.catalogue)
    chosen = list(_chosen(catalogue, options))
    extra = [packages.folder(catalogue.packages)] if catalogue.packages else []
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    if not options.json:
        print(report.HEAD, flush=True)

    def run(pair):
        suite, file = pair
        log = options.logs / f"{suite.name}_{file.replace('/', '_')}.log" if options.logs else None
        setting = catalogue.setting(suite, file)
        outcome = suites.run(suite, file, options.root, options.timeout, setting, extra, log)
        judgement = catalogue.judge(suite, outcome)
        if not options.json:
            print("\n".join(report.lines(outcome, judgement)), flush=True)
        return outcome, judgement

    with concurrent.futures.ThreadPoolExecutor(max(options.jobs, 1)) as pool:
        try:
            found = list(pool.map(run, chosen))
        except BaseException:  # Ctrl-C and SIGTERM as well
            pool.shutdown(wait=False, cancel_futures=True)
            suites.stop()
            raise
    _conclude(found, options.json)
    return 0 if all(judgement.is_good for _, judgement in found) else 1


def _chosen(catalogue: known.Known, options: argparse.Namespace):
    """(suite, file) of what is asked for. Raises PeersError where a tree or everything is missing."""
    for suite in catalogue.suites:
        for tree in (suite.tree, *suite.path):
            if not (options.root / tree).is_dir():
                raise known.PeersError(
                    f"expected a source tree {tree} in {options.root}, found none.\n"
                    "Name with --root the folder that holds the trees at matrix.toml's commits."
                )
    pattern = f"*{options.only}*"
    pairs = [(suite, file) for suite in catalogue.suites for file in suite.discover(options.root)]
    chosen = [
        (suite, file) for suite, file in pairs if fnmatch.fnmatchcase(f"{suite.name} {suite.tree}/{file}", pattern)
    ]
    if not chosen:
        raise known.PeersError(
            f"expected a test file that --only {options.only!r} selects, found none of {len(pairs)}."
        )
    return chosen


def _conclude(found, as_json: bool) -> None:
    if as_json:
        print(report.document(found))
        return
    print()
    for name in dict.fromkeys(outcome.suite for outcome, _ in found):
        print(report.total(name, [(outcome, judgement) for outcome, judgement in found if outcome.suite == name]))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
