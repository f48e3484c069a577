"""Runs the unit tests (Check) and the integration tests (pytest) and counts them together.

Ends with one line, `N passed, N failed, N skipped`, and exits non-zero when anything failed or nothing ran.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNIT_TIMEOUT_S = 300
CHECK_LINE = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)", re.MULTILINE)


@dataclass
class Count:
    """How many tests ended in which way."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: Count) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def run_program(program: Path, environment: dict[str, str]) -> tuple[Count, str]:
    """One test executable: what it counted and printed. One that crashes or hangs counts as a failure."""
    try:
        done = subprocess.run(
            [program],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=UNIT_TIMEOUT_S,
            env=environment,
        )
        output, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired:
        output, code = f"no end within {UNIT_TIMEOUT_S} s", -1
    count = Count()
    for checks, failures, errors in CHECK_LINE.findall(output):
        bad = int(failures) + int(errors)
        count.add(Count(int(checks) - bad, bad, 0))
    if code != 0 and count.failed == 0:
        count.failed = 1
    return count, output


def run_unit(build: Path, environment: dict[str, str]) -> Count:
    """Every test_* executable of the build; one that crashes counts as a failure."""
    total = Count()
    programs = sorted(
        p for p in (build / "tests/unit").glob("test_*") if os.access(p, os.X_OK) and p.is_file()
    )
    for program in programs:
        count, output = run_program(program, environment)
        if count.failed:
            print(f"{program.name}: failed, once more\n{output}", flush=True)
            count, output = run_program(program, environment)
        print(f"{program.name}: {count.passed} passed, {count.failed} failed", flush=True)
        if count.failed:
            print(output, flush=True)
        total.add(count)
    return total


def run_pytest(arguments: list[str], environment: dict[str, str]) -> Count:
    """pytest's own report, counted from its JUnit file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-raR",
            f"--junit-xml={report}",
            *arguments,
        ]
        # Processes, signals and sockets on a busy machine: once more, and the report says which (R).
        if importlib.util.find_spec("pytest_rerunfailures"):
            command += ["--reruns", "1"]
        # Most of what a test does is wait, so one more than there are cores.
        if importlib.util.find_spec("xdist"):
            command += ["-n", str(min(len(os.sched_getaffinity(0)), 7) + 1), "--dist", "load"]
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        if not report.exists():
            return Count(failed=1)
        suites = ElementTree.parse(report).getroot().iter("testsuite")
        total = Count()
        for suite in suites:
            bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped = int(suite.get("skipped", 0))
            total.add(Count(int(suite.get("tests", 0)) - bad - skipped, bad, skipped))
        if code not in (0, 5) and total.failed == 0:
            total.failed = 1
        return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="dev", help="the build to test")
    parser.add_argument("--no-pytest", action="store_true", help="unit tests only")
    parser.add_argument("--no-unit", action="store_true", help="integration tests only")
    parser.add_argument(
        "pytest", nargs="*", help="arguments for pytest (default: tests/integration)"
    )
    args = parser.parse_args()
    build = ROOT / "build" / args.preset
    environment = dict(os.environ)
    environment["ROOMKEEPER_BUILD"] = str(build)
    # The sources, with the extension of this build.
    environment["PYTHONPATH"] = str(ROOT / "python")
    environment["ROOMKEEPER_BRIDGE_DIR"] = str(build / "python/roomkeeper")
    total = Count()
    if not args.no_unit:
        total.add(run_unit(build, environment))
    if not args.no_pytest:
        # A sanitizer's runtime has to be there before the interpreter is.
        if preload := os.environ.get("ROOMKEEPER_PRELOAD"):
            environment["LD_PRELOAD"] = preload
        total.add(run_pytest(args.pytest or ["tests/integration"], environment))
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or total.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
