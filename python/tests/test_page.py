"""The page of `adverb lab report` in a browser: on a phone and on a screen, light and dark."""

import html
import json
import re
import shutil
import subprocess

import adverb
import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

# What a browser makes of the page: written by a script in the page around it, which the page itself does not have.
LOOK = r"""
function luminance(colour) {
  const parts = colour.match(/[\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4));
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}
function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const paper = luminance(view.getComputedStyle(page.body).backgroundColor);
  let contrast = 99;
  for (const e of page.querySelectorAll("h1, h2, h3, p, a, td, th, li, pre, summary, .tag")) {
    const ink = luminance(view.getComputedStyle(e).color);
    contrast = Math.min(contrast, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05));
  }
  const scrolled = e => e.closest(".wide, pre, svg");
  const wide = [...page.body.querySelectorAll("*")].filter(e => !scrolled(e))
    .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1).map(e => e.outerHTML.slice(0, 80));
  const plots = [...page.querySelectorAll("svg")].map(e => e.getBoundingClientRect());
  const text = [...page.querySelectorAll("svg text")].map(e => e.getBoundingClientRect().height);
  return { width: root.clientWidth, scroll: root.scrollWidth, paper, contrast, wide, plots: plots.length,
    flat: plots.filter(b => b.width < 200 || b.height < 100).length, text: Math.min(...text),
    font: parseFloat(view.getComputedStyle(page.body).fontSize), scripts: page.scripts.length };
}
addEventListener("load", () => {
  document.title = "looked";
  document.body.textContent = JSON.stringify(look(document.querySelector("iframe")));
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page of a published experiment and of one's own."""
    folder = tmp_path_factory.mktemp("page")
    adverb.lab._command.call("lab", "new", folder / "mine")
    mine = folder / "mine" / "first" / "experiment.toml"
    mine.write_text(mine.read_text().replace("[quick]\n", "[quick.set.workload]\nflows = 200\n[quick]\n", 1))
    words = ["onerma/fig11b", folder / "mine", "--seeds", "2", "--quiet", "--out", folder / "out"]
    try:
        adverb.lab._command.call("lab", "report", *words)
    except adverb.Failed as failed:
        # Two seeds leave wide intervals: whether bounds hold says nothing here, and the page is there all the same.
        assert "the page: " in failed.printed, failed.printed
    return folder / "out"


def test_the_page_has_each_experiment_and_what_it_names(page):
    text = (page / "index.html").read_text()
    for wanted in (
        'id="onerma-fig11b"', 'id="mine-first"', "Singhvi et al.", "<code>adverb lab run onerma/fig11b --seeds 2<",
        "3.6 to 4.2", "the rate scales with the slots", 'aria-label="goodput (Gb/s)"', "prefers-color-scheme: dark",
        'name="viewport" content="width=device-width',
    ):
        assert wanted in text, wanted
    ids = set(re.findall(r'id="([^"]+)"', text))
    links = re.findall(r'href="([^"]+)"', text)
    assert links and len(ids) == len(re.findall(r' id="', text))
    for link in links:
        assert link[1:] in ids if link.startswith("#") else (page / link).is_file(), link
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", text), "it needs nothing else"


@pytest.mark.skipif(not BROWSER, reason="chromium is not there: apt-get install chromium")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_in_a_browser(page, tmp_path, width, dark):
    seen = browse((page / "index.html").read_text(), tmp_path, width, dark)
    assert seen["width"] > width - 30, seen
    assert seen["scroll"] <= seen["width"] and not seen["wide"], seen
    assert seen["plots"] >= 2 and not seen["flat"] and seen["scripts"] == 0, seen
    assert (seen["paper"] < 0.1) == dark and seen["contrast"] >= 4.5, seen
    # Letters of plots and of text that a reader need not enlarge, in CSS pixels.
    assert seen["text"] >= 9 and seen["font"] >= 15, seen


@pytest.mark.skipif(not BROWSER, reason="chromium is not there: apt-get install chromium")
def test_the_browser_finds_a_page_that_is_too_wide_or_too_pale(page, tmp_path):
    text = (page / "index.html").read_text()
    wide = browse(text.replace(".wide { overflow-x: auto", ".wide { overflow-x: visible", 1), tmp_path, 360, False)
    assert wide["scroll"] > wide["width"], wide
    pale = browse(re.sub(r"--soft: #\w+", "--soft: #b0b0b0", text), tmp_path, 360, False)
    assert pale["contrast"] < 4.5, pale


def browse(text, folder, width, dark):
    around = folder / "around.html"
    frame = f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(text)}"></iframe>'
    around.write_text(f"<!doctype html><meta charset=utf-8><script>{LOOK}</script><body>{frame}</body>")
    line = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--window-size=1400,1000", "--dump-dom",
        around.as_uri(),
    ]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r"<body>(\{.*\})</body>", done.stdout, re.S)
    assert done.returncode == 0 and found, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return json.loads(html.unescape(found.group(1)))
