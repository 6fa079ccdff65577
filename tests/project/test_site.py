"""The documentation's site builds without a warning, has no dead link, and loads nothing from
other hosts.

The site is built again if a page, another file of docs/, this file, or the name of a file has
changed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.kit import references
from tests.kit.matrix import git

ROOT = Path(__file__).parents[2]
INDEX = "docs/index.html"
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_STYLE_LOADS = re.compile(r"(?:@import\s+|url\(\s*)[\"']?(?!data:|#)([^\"')\s;]+)")


@dataclass
class Page:
    """The anchors and the links of a page."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    """The addresses that a browser fetches when it shows the page."""
    navigation: list[str] = field(default_factory=list)


class _Parser(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__()
        self.page = page
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        if "id" in given:
            self.page.anchors.add(given["id"])
        if tag == "div":
            in_tree = "sidebar-tree" in given.get("class", "").split()
            self._depth += bool(self._depth or in_tree)
        if tag == "a" and "href" in given:
            (self.page.navigation if self._depth else self.page.links).append(given["href"])
        if loaded := given.get(_LOADS.get(tag, "")):
            self.page.loads.append(loaded)
        self.page.loads += _STYLE_LOADS.findall(given.get("style", ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._depth:
            self._depth -= 1


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    options = ["-q", "-W", "--keep-going", "-n", "-c", source / "docs", "-d", out / "doctrees"]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "-b", "html", source, out / "html"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    out = tmp_path_factory.mktemp("site")

    def make(folder: Path) -> None:
        done = build(ROOT, out)
        assert (done.returncode, done.stderr) == (0, "")
        shutil.copytree(out / "html", folder, dirs_exist_ok=True)

    try:
        key = key_of_site()
    except (OSError, subprocess.CalledProcessError):  # the checkout is not a git repository
        make(out / "stored")
    else:
        references.fill(out / "stored", key, make)
    return out / "stored"


def key_of_site() -> str:
    """Return the key of the files that a build reads, and of all names, which pages link to.

    Files that git ignores are left out. Raises OSError or CalledProcessError without git.
    """
    names = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    names = sorted(name for name in names if (ROOT / name).is_file())
    pages = {ROOT / name for name in names if name.endswith(".md") or name.startswith("docs/")}
    return references.key_of(pages | {ROOT / "pyproject.toml", Path(__file__)}, *names)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Every page by its path in the site."""
    found = {}
    for file in site.rglob("*.html"):
        parser = _Parser(page := Page())
        parser.feed(file.read_text())
        found[file.relative_to(site).as_posix()] = page
    return found


def target(page: str, link: str, site: Path) -> tuple[str, str]:
    """Return the path in the site and the anchor that a link of a page leads to."""
    parts = urlsplit(link)
    path = (site / page).parent / unquote(parts.path) if parts.path else site / page
    return path.resolve().relative_to(site.resolve()).as_posix(), unquote(parts.fragment)


class TestTheSite:
    def test_no_link_in_it_is_dead(self, site: Path, pages: dict[str, Page]) -> None:
        followed = 0
        for name, page in pages.items():
            for link in [*page.links, *page.loads, *page.navigation]:
                if urlsplit(link).scheme in ("http", "https", "data"):
                    continue
                place, anchor = target(name, link, site)
                assert (site / place).is_file(), f"{link} in {name}"
                assert not anchor or anchor in pages[place].anchors, f"{link} in {name}"
                followed += 1
        assert followed > 1000

    def test_every_page_of_the_documentation_is_in_the_navigation(
        self, site: Path, pages: dict[str, Page]
    ) -> None:
        listed = {target(INDEX, link, site)[0] for link in pages[INDEX].navigation}
        written = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        names = {f.relative_to(ROOT).with_suffix(".html").as_posix() for f in written}
        assert names - {INDEX} <= listed
        assert {"docker/README.html", "collector-config/README.html"} <= listed

    def test_a_browser_fetches_nothing_from_elsewhere(
        self, site: Path, pages: dict[str, Page]
    ) -> None:
        loads = [load for page in pages.values() for load in page.loads]
        styles = [file.read_text() for file in site.rglob("*.css")]
        loads += [load for style in styles for load in _STYLE_LOADS.findall(style)]
        assert loads
        assert [load for load in loads if urlsplit(load).netloc] == []

    def test_begins_at_its_top(self, pages: dict[str, Page]) -> None:
        assert pages["index.html"].links == [INDEX]


DEAD = {
    "page_link": "[x](gone.md)",
    "anchor": "[x](#gone-part)",
    "anchor_of_page": "[x](index.md#gone-there)",
    "image": "![x](gone.png)",
}
"""The dead link of each page, by the name of the page."""


def sources(folder: Path) -> Path:
    """Write the site's own configuration, with two pages."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.md", "images"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "docs/index.md").write_text("# Index\n\n## Use\n\n- [A page](page.md)\n")
    (folder / "docs/page.md").write_text("# A page\n\n## A part\n\n[there](#a-part)\n")
    return folder


@pytest.fixture(scope="module")
def warnings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The warnings of the build by the name of the page; the build has failed."""
    source = sources(tmp_path_factory.mktemp("mistakes"))
    listed = "".join(f"- [A page]({name}.md)\n" for name in ["page", *DEAD])
    (source / "docs/index.md").write_text(f"# Index\n\n## Use\n\n{listed}")
    for name, link in DEAD.items():
        (source / f"docs/{name}.md").write_text(f"# A page\n\n{link}\n")
    (source / "docs/other.md").write_text("# Another\n")
    done = build(source, source / "build")
    assert done.returncode == 1
    found: dict[str, list[str]] = {}
    for line in done.stderr.splitlines():
        if match := re.match(r".*/docs/(\w+)\.md\S* WARNING: (.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


class TestMistakes:
    """One build of a source with several mistakes fails, and reports each of them."""

    @pytest.mark.parametrize(
        ("page", "destination"),
        [
            ("page_link", "gone.md"), ("anchor", "gone-part"), ("anchor_of_page", "gone-there"),
            ("image", "gone.png"),
        ],
    )  # fmt: skip
    def test_a_dead_link_is_a_warning(
        self, warnings: dict[str, list[str]], page: str, destination: str
    ) -> None:
        [warning] = warnings[page]
        assert destination in warning

    def test_a_page_that_is_in_no_list_is_a_warning(self, warnings: dict[str, list[str]]) -> None:
        [warning] = warnings["other"]
        assert "toctree" in warning


class TestABuild:
    """A build that differs from that of the site in its pages."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return sources(tmp_path)

    def test_unmodified_source_passes(self, source: Path) -> None:
        assert build(source, source / "build").returncode == 0

    def test_with_one_mistake_fails(self, source: Path) -> None:
        (source / "docs/page.md").write_text("# A page\n\n[x](gone.md)\n")
        done = build(source, source / "build")
        assert done.returncode == 1
        assert "gone.md" in done.stderr

    def test_resolves_links_to_folders_files_and_html_ids(self, source: Path) -> None:
        (source / "docker").mkdir()
        (source / "docker/README.md").write_text("# Docker\n")
        (source / "docs/index.md").write_text(
            "# Index\n\n## Use\n\n- [A page](page.md)\n- [Docker](../docker/README.md)\n"
        )
        (source / "docs/page.md").write_text(
            "# A page\n\n[all](../docker/), [file](../pyproject.toml), [it](#an_odd_one)\n\n"
            '<details id="an_odd_one"><summary>it</summary></details>\n'
        )
        done = build(source, source / "build")
        assert (done.returncode, done.stderr) == (0, "")
        parser = _Parser(page := Page())
        parser.feed((source / "build/html/docs/page.html").read_text())
        assert {"../docker/README.html", "#an_odd_one"} <= set(page.links)
        assert any(link.endswith("/pyproject.toml") for link in page.links)
