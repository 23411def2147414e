"""Defines main() of the Python tests. Their last line is `N passed, N failed`.

Arguments are names of the test classes to run; without any, all are run.
"""

import sys
import unittest


def main(verbosity=2):
    """Runs the test cases of the program's main module and exits."""
    loader, module = unittest.defaultTestLoader, sys.modules["__main__"]
    names = sys.argv[1:]
    suite = loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=verbosity).run(suite)
    failed = len({test.id() for test, _ in result.failures + result.errors})
    for test, reason in result.skipped:
        print("skipped: {}: {}".format(test.id(), reason))
    passed = max(result.testsRun - failed - len(result.skipped), 0)
    print("{} passed, {} failed".format(passed, failed), flush=True)
    sys.exit(0 if failed == 0 and passed > 0 else 1)
