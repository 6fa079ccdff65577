"""The rule by which CI runs the groups of the matrix, tested with commits of known times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.matrix import ALL, GROUPS, NONE, Group, choose, parse, recent_changes

ROOT = Path(__file__).parents[2]
NOW = 1_700_000_000
HOUR = 3600
FEW = {"a": Group("one file", ("one.txt",)), "b": Group("one directory", ("some/",))}


class Repository:
    """A git repository whose commits have the times that a test chooses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, time: int = NOW) -> None:
        names = {f"GIT_{who}_NAME": "a" for who in ("AUTHOR", "COMMITTER")}
        names |= {f"GIT_{who}_EMAIL": "a@b" for who in ("AUTHOR", "COMMITTER")}
        dates = {f"GIT_{who}_DATE": f"{time} +0000" for who in ("AUTHOR", "COMMITTER")}
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env |= {**names, **dates, "GIT_CONFIG_GLOBAL": os.devnull}
        command = ["git", "-C", str(self.folder), *arguments]
        subprocess.run(command, check=True, env=env, capture_output=True)

    def commit(self, path: str, hours: float) -> None:
        """Change a file in a commit so many hours earlier than `NOW`."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{file.read_text() if file.exists() else ''}{hours}\n")
        self.git("add", "--", path)
        self.git("commit", "--quiet", "-m", path, time=NOW - int(hours * HOUR))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_changes_of_48_hours_ahead_of_head_count(repository: Repository) -> None:
    repository.commit("older", 100)
    repository.commit("just outside", 48.1)
    repository.commit("just inside", 47.9)
    repository.commit("some/ü", 1)
    repository.commit("head", 0)
    assert recent_changes(repository.folder) == ["head", "just inside", "some/ü"]


def test_the_hours_count_from_head_and_not_from_today(repository: Repository) -> None:
    repository.commit("first", 1000)
    repository.commit("last", 990)
    assert recent_changes(repository.folder) == ["first", "last"]


def test_both_names_of_a_moved_file_count(repository: Repository) -> None:
    repository.commit("some/old", 100)
    repository.git("mv", "some/old", "new")
    repository.git("commit", "--quiet", "-m", "move")
    assert recent_changes(repository.folder) == ["new", "some/old"]


def test_a_deleted_file_counts(repository: Repository) -> None:
    repository.commit("one.txt", 100)
    repository.commit("two.txt", 99)
    repository.git("rm", "--quiet", "one.txt")
    repository.git("commit", "--quiet", "-m", "delete")
    assert recent_changes(repository.folder) == ["one.txt"]


def test_commits_of_a_merged_branch_count(repository: Repository) -> None:
    repository.commit("base", 100)
    repository.git("checkout", "--quiet", "-b", "branch")
    repository.commit("some/file", 2)
    repository.git("checkout", "--quiet", "main")
    repository.commit("other", 3)
    repository.git("merge", "--quiet", "--no-ff", "-m", "merge", "branch")
    assert recent_changes(repository.folder) == ["other", "some/file"]


def test_uncommitted_and_untracked_files_count(repository: Repository) -> None:
    repository.commit("base", 100)
    repository.commit("head", 0)
    (repository.folder / "base").write_text("changed")
    (repository.folder / "new").write_text("")
    assert recent_changes(repository.folder) == ["base", "head", "new"]


def shallow(repository: Repository, depth: int) -> Path:
    clone = repository.folder.with_name("clone")
    source = f"file://{repository.folder}"
    repository.git("clone", "--quiet", f"--depth={depth}", source, str(clone))
    return clone


def test_a_shallow_clone_without_all_recent_commits_is_unknown(repository: Repository) -> None:
    for hours in (100, 30, 20, 10):
        repository.commit(f"file-{hours}", hours)
    assert recent_changes(shallow(repository, 2)) is None


def test_a_shallow_clone_with_all_recent_commits_is_enough(repository: Repository) -> None:
    for hours in (100, 90, 20, 10):
        repository.commit(f"file-{hours}", hours)
    assert recent_changes(shallow(repository, 3)) == ["file-10", "file-20"]


def test_a_directory_that_is_not_a_repository_is_unknown(tmp_path: Path) -> None:
    assert recent_changes(tmp_path) is None


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["one.txt"], {"a"}),
        (["some/file", "some/deep/file"], {"b"}),
        (["one.txt", "some/file"], {"a", "b"}),
        (["one.txt.old", "someone", "deep/some/file", "deep/one.txt"], set()),
        ([], set()),
        (None, {"a", "b"}),
    ],
)
def test_a_group_runs_if_one_of_its_inputs_changed(
    paths: list[str] | None, expected: set[str]
) -> None:
    chosen, others = choose(paths, FEW)
    assert set(chosen) == expected
    assert set(others) == set(FEW) - expected


def test_names_are_parsed() -> None:
    assert parse(ALL) == set(GROUPS)
    assert parse(NONE) == set()
    assert parse("spark,pythons") == {"spark", "pythons"}
    with pytest.raises(ValueError, match="'sparc' is not a group of the matrix: expected all"):
        parse("spark,sparc")


def test_every_input_exists() -> None:
    for name, group in GROUPS.items():
        for each in group.inputs:
            path = ROOT / each
            assert path.is_dir() if each.endswith("/") else path.is_file(), (name, each)


def test_every_pin_of_other_versions_is_an_input() -> None:
    pins = [*ROOT.glob("tests/**/pins/*.txt"), *ROOT.glob("tests/**/torch-*.txt")]
    names = [str(each.relative_to(ROOT)) for each in pins if "iceberg" not in each.name]
    assert len(names) > 10
    for name in names:
        assert choose([name])[0], name


def test_ci_installs_other_versions_for_the_groups_that_need_them() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert set(re.findall(r"has ([\w-]+);", script)) == {"oldest-torch", "pythons"} < set(GROUPS)


def test_the_module_runs_without_the_environment_and_prints_reasons() -> None:
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, '.');"
               "from tests.kit.matrix import main; main()"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    chosen = parse(done.stdout.strip())
    for name in GROUPS:
        wanted = f"matrix: {name} runs: " if name in chosen else f"matrix: {name} ("
        assert wanted in done.stderr


def collected(option: str, directory: Path) -> str:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider",
               "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "--matrix", option,
               str(directory)]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_group_that_is_not_named_is_deselected() -> None:
    file = ROOT / "tests" / "system" / "frameworks" / "test_sklearn.py"
    assert re.search(r"(\d+)/(\d+) tests collected \(\d+ deselected\)", collected("none", file))
    assert "deselected" in collected("oldest-torch", file)
    assert "deselected" not in collected("oldest-trainers", file)


def test_an_unknown_group_is_refused_ahead_of_the_collection() -> None:
    output = collected("sparc", ROOT / "tests" / "project" / "test_groups.py")
    assert "--matrix: 'sparc' is not a group of the matrix: expected all, none" in output
