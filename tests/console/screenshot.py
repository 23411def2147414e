#!/usr/bin/env python3
"""Makes docs/page.png: the console of a daemon that works, in a real browser.

    tests/console/screenshot.py [FILE]

Needs RESIDENTD and RESIDENTCTL, or a build in bazel-bin.
"""

import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).absolute().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "cli"), str(ROOT / "tests" / "console")]
import browser as browsers  # pylint: disable=wrong-import-position
import daemon as daemons  # pylint: disable=wrong-import-position

LOAD_S = 45  # Of the charts' ten minutes.


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/page.png"
    daemon = daemons.Daemon()
    browser = browsers.Browser(1000, 1200)
    try:
        daemon.ctl("ops", "install", "swish", "--expr", "x * sigmoid(x)", "--wait=active")
        daemon.ctl("ops", "install", "swish", "--expr", "x * sigmoid(1.702 * x)", "--wait=active")
        daemon.ctl("ops", "rollback", "swish")
        graph = daemon.folder / "graph.json"
        graph.write_text(re.search(r"```json feature.json\n(.*?)```",
                                   (ROOT / "docs/graphs.md").read_text(), re.DOTALL).group(1))
        daemon.ctl("graph", "load", graph)
        daemon.ctl("graph", "trace", graph, "x=1,2,3,4,-1,2,-3,4", "w=1,1,1,1")
        browser.open("http://{}/".format(daemon.metrics_address))
        end = time.monotonic() + LOAD_S
        while time.monotonic() < end:
            for name in ("swish", "add"):
                daemon.ctl("run", name, "x=1,2,3", *(["y=1,2,3"] if name == "add" else []))
            load = subprocess.Popen([str(daemons.RESIDENTCTL), "bench", "--quick",
                                     "--server=" + daemon.address], stdout=subprocess.DEVNULL)
            # The last picture is taken while the load runs.
            if time.monotonic() > end - 8:
                browser.run("document.getElementById('used').click()")
                browsers.wait_for("a client", lambda: len(browser.table("client-table")[0]) > 1)
                browser.run("document.querySelector('#graph-table button').click()")
                browsers.wait_for("the drawing", lambda: browser.run(
                    "document.getElementById('drawing-picture').naturalWidth") > 0)
                browser.run("document.activeElement.blur(); scrollTo(0, 0)")
                browser.screenshot(out)
                load.kill()
                load.wait()
                break
            load.wait()
    finally:
        browser.stop()
        daemon.stop()
    print("{}: {} bytes".format(out, out.stat().st_size))


if __name__ == "__main__":
    main()
