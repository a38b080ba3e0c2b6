"""Render each page of the built site at desktop and phone width: errors, what is cut and, on request, pictures.

    python docs/look.py docs/_build/html --output /tmp/pictures

Needs playwright and a Chromium (Debian: chromium). Exits with 1 where a page has errors or is wider than the screen,
where an equation, an output, code or a table is cut on a desktop, or where one that scrolls on a phone has no shadow at
its edge to say so. Exits with 3 where there is no browser.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width + 1) return [];
  return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > width + 1)
    .map(e => e.tagName + '.' + e.className).slice(0, 5);
}"""

# What is wider than its own box. On a phone, and where it is folded, it may scroll, if a
# shadow at its edge shows that there is more.
CUT = """(mayScroll) => [...document.querySelectorAll('.bd-article *')].filter(e => {
  const style = getComputedStyle(e);
  if (e.scrollWidth <= e.clientWidth + 1 || style.overflowX === 'visible' || e.clientWidth < 2) return false;
  const scrolls = style.overflowX === 'auto' && style.backgroundAttachment.includes('local');
  return !((mayScroll || e.closest('details')) && scrolls);
}).map(e => `${e.tagName}.${e.className}, ${e.scrollWidth} pixels in ${e.clientWidth}: `
  + e.textContent.trim().replace(/\\s+/g, ' ').slice(0, 60))"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Nothing."""


def serve(root: Path) -> http.server.ThreadingHTTPServer:
    """A server of the site on this machine, on a free port."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(root))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def look(page: Page, address: str, may_scroll: bool) -> list[str]:
    """What is wrong with a page: errors of scripts, files that are missing, what is wider than the screen or cut."""
    found: list[str] = []

    def on_console(message: object) -> None:
        if message.type == "error":
            found.append(f"console: {message.text}")

    def on_error(error: object) -> None:
        found.append(f"error: {error}")

    page.on("console", on_console)
    page.on("pageerror", on_error)
    page.goto(address, wait_until="load")
    found += [
        f"wider than the screen: {element}" for element in page.evaluate(TOO_WIDE)
    ]
    found += [f"cut: {element}" for element in page.evaluate(CUT, may_scroll)]
    page.remove_listener("console", on_console)
    page.remove_listener("pageerror", on_error)
    return found


def main() -> int:
    """Look at every page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--output", type=Path, help="folder for pictures of the pages")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--only", default="", help="pages whose path holds this")
    options = parser.parse_args()
    browser_path = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )
    if browser_path is None:
        print("no Chromium", file=sys.stderr)
        return 3
    pages = [
        page
        for page in sorted(options.root.rglob("*.html"))
        if not {"_static", "_modules"} & set(page.parts) and options.only in str(page)
    ]
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
    server, wrong = serve(options.root), 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path,
            args=["--no-sandbox", "--disable-gpu", "--force-prefers-reduced-motion"],
        )
        for name, (width, height) in WIDTHS.items():
            scheme = "dark" if options.dark else "light"
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            view = context.new_page()
            for page in pages:
                path = page.relative_to(options.root)
                address = f"http://127.0.0.1:{server.server_port}/{path}"
                for problem in look(view, address, may_scroll=name == "phone"):
                    print(f"{path}, {name}: {problem}")
                    wrong += 1
                if options.output is None:
                    continue
                picture = (
                    options.output
                    / f"{'-'.join(path.with_suffix('').parts)}-{name}.png"
                )
                view.screenshot(
                    path=picture, full_page=True, animations="disabled", timeout=120_000
                )
        browser.close()
    print(f"{len(pages)} pages, {wrong} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
