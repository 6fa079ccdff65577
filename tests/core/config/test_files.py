from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.core.config.options import NOT_GIVEN, Config

from .places import BY_NAME, Place


class TestFiles:
    def test_yaml_json_and_toml(self, place: Place) -> None:
        place.write_project('{"profiling": {"sample_rate": 0.2, "snapshots": null}}', "cirron.json")
        place.write_home('[default]\nworkspace_id = "w"\napi_key = "k"\nsample_rate = 0.9\n')
        found = place.resolve()
        assert found.problems == ()
        assert (found.config.sample_rate, found.config.snapshots) == (0.2, None)
        assert (found.config.workspace_id, found.config.api_key) == ("w", "k")

    def test_the_nearest_file_and_yaml_first(self, place: Place) -> None:
        place.write_project("profiling: {sample_rate: 0.1}", "cirron.json")
        place.write_project("profiling: {sample_rate: 0.2}", "cirron.yml")
        place.write_project("profiling: {sample_rate: 0.3}", "cirron.yaml")
        (place.project.parent / "cirron.yaml").write_text("profiling: {sample_rate: 0.4}")
        assert place.resolve().config.sample_rate == 0.3
        (place.project / "cirron.yaml").unlink()
        assert place.resolve().config.sample_rate == 0.2

    @pytest.mark.parametrize("kind", [str, Path])
    def test_path_names_the_file(self, place: Place, kind: type) -> None:
        place.write_project("profiling: {sample_rate: 0.3}")
        (place.cwd / "other.yaml").write_text("profiling: {sample_rate: 0.5}")
        found = place.resolve(path=kind("other.yaml"))
        assert found.config.sample_rate == 0.5
        assert place.resolve(path=None) == place.resolve(path=NOT_GIVEN) == place.resolve()

    def test_a_path_that_leads_nowhere_is_reported(self, place: Place) -> None:
        place.write_project("profiling: {sample_rate: 0.3}")
        for path in ("missing.yaml", "..", "nul\0"):
            found = place.resolve(path=path)
            assert found.config.sample_rate == 0.01
            (problem,) = found.problems
            assert problem.startswith("the file of path=")
        (problem,) = place.resolve(path=3).problems
        assert problem == "the file of path= is a int: expected a path; it is not used"

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("profiling: [1", "is invalid (ParserError in line 1)"),
            ("profiling: 3", "has a 'profiling' that is not a mapping"),
            ("- 1", "is not a mapping, so it has no 'profiling'"),
            (
                "a: !!python/object/apply:os.system [true]",
                "is invalid (ConstructorError in line 1)",
            ),
            ("a: 2024-99-99", "is invalid (ValueError)"),
            ("[" * 5000, "is nested too deeply"),
            ("x: " + "y" * 1_000_001, "is larger than 1,000,000 bytes"),
        ],
    )
    def test_a_damaged_project_file_is_reported(self, place: Place, text: str, reason: str) -> None:
        place.write_project(text)
        found = place.resolve()
        path = place.project / "cirron.yaml"
        assert found.problems == (f"cirron.yaml, {path}, {reason}; it is not used",)
        assert found.config == Config(output_dir=place.cwd / ".cirron")

    def test_file_with_invalid_utf8_is_reported(self, place: Place) -> None:
        (place.project / "cirron.yaml").write_bytes(b"profiling:\n  run: \xff\n")
        assert "is not UTF-8" in place.resolve().problems[0]

    def test_merge_keys_work_and_do_not_explode(self, place: Place) -> None:
        place.write_project("base: &b {sample_rate: 0.3}\nprofiling: {<<: *b, snapshots: full}")
        assert place.resolve().config.sample_rate == 0.3
        lines = ["k0: &k0 {a: 1}"]
        lines += [f"k{n}: &k{n} {{<<: [{', '.join([f'*k{n - 1}'] * 10)}]}}" for n in range(1, 10)]
        place.write_project("\n".join(lines))
        assert len(place.resolve().problems) == 1
        lines = [f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 10)}]" for n in range(1, 9)]
        place.write_project("\n".join(["k0: &k0 [lol]", *lines, "profiling: {sample_rate: *k8}"]))
        (problem,) = place.resolve().problems
        assert len(problem) < 1000

    def test_a_document_of_aliases_is_refused(self, place: Place) -> None:
        for count, problems in ((100, 0), (101, 1)):
            aliases = ", ".join(["*a"] * count)
            place.write_project(f"a: &a 1\nb: [{aliases}]\nprofiling: {{sample_rate: 0.5}}")
            assert len(place.resolve().problems) == problems

    def test_a_user_without_a_home_has_no_file(self, place: Place) -> None:
        (place.cwd / ".cirron").mkdir()
        (place.cwd / ".cirron" / "config.toml").write_text("[default]\nsample_rate = 0.9\n")
        script = (
            "import os, pwd\n"
            "os.environ.pop('HOME', None)\n"
            "def getpwuid(uid): raise KeyError(uid)\n"
            "pwd.getpwuid = getpwuid\n"
            "from cirron_otel.core.config.resolve import resolve\n"
            "found = resolve(environ={})\n"
            "assert found.config.sample_rate == 0.01, found\n"
            "assert found.problems == (), found\n"
        )
        root = str(Path(__file__).parents[3])
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=place.cwd,
            env={"PYTHONPATH": root},
            check=True,
            timeout=60,
        )

    def test_a_damaged_user_file_does_not_show_the_key(self, place: Place) -> None:
        place.write_home('[default]\n\napi_key = "sesame\n')
        (problem,) = place.resolve().problems
        assert "TOMLDecodeError in line 3" in problem
        assert "sesame" not in problem

    def test_empty_files_and_blocks_cause_no_problems(self, place: Place) -> None:
        for text in ("", "name: x", "profiling:", "profiling: {}", "\ufeffname: x"):
            place.write_project(text)
            assert place.resolve().problems == ()
        place.write_home("")
        assert place.resolve().problems == ()

    def test_unknown_keys_are_ignored(self, place: Place) -> None:
        place.write_project("profiling: {bogus: 1, 5: 6, load_max_bytes: 3}")
        found = place.resolve(config={"bogus": object(), 7: 8}, instance={"load_max_bytes": 3})
        assert found == place.resolve()
        assert found.problems == ()

    def test_an_unknown_keyword_of_profile_is_reported(self, place: Place) -> None:
        found = place.resolve({"flush_intervall": 9, "flush_interval": 2})
        assert found.config == place.resolve({"flush_interval": 2}).config
        assert found.problems == ("flush_intervall= of profile() is not an option; it is ignored",)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("api_key", "sesame"), ("api_endpoint", "https://sesame"), ("ingest_path", "/sesame")],
    )
    def test_project_file_cannot_set_the_api_key_or_its_destination(
        self, place: Place, name: str, value: str
    ) -> None:
        place.write_project(f"profiling: {{{name}: '{value}'}}")
        found = place.resolve()
        assert getattr(found.config, name) == BY_NAME[name].default
        (problem,) = found.problems
        assert problem.endswith(
            f"is ignored: set it in CIRRON_{name.upper()} or ~/.cirron/config.toml"
        )
        assert "sesame" not in problem
        place.write_home(f"[default]\n{name} = '{value}'\n")
        assert getattr(place.resolve().config, name) == value

    def test_run_id_in_a_file_is_reported_and_ignored(self, place: Place) -> None:
        place.write_project("profiling: {run_id: r}")
        place.write_home("[default]\nrun_id = 'r'\n")
        found = place.resolve()
        assert found.config.run_id is None
        assert len(found.problems) == 2
        assert found.problems[0].endswith("set it in CIRRON_RUN_ID")

    def test_a_pipe_does_not_block(self, place: Place) -> None:
        os.mkfifo(place.project / "cirron.yaml")
        assert place.resolve().problems == ()
        assert len(place.resolve(path=place.project / "cirron.yaml").problems) == 1

    def test_a_deleted_working_directory(self) -> None:
        script = (
            "import os, tempfile; gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)\n"
            "from cirron_otel.core.config.resolve import resolve\n"
            "found = resolve(environ={})\n"
            "assert str(found.config.output_dir) == '.cirron', found\n"
        )
        subprocess.run(
            [sys.executable, "-c", script],
            check=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[3])},
            timeout=60,
        )


def test_no_parser_is_imported_without_a_file(place: Place) -> None:
    script = (
        "import sys, pathlib\n"
        "from cirron_otel.core.config.resolve import resolve\n"
        "here = pathlib.Path(sys.argv[1])\n"
        "resolve(environ={}, cwd=here, home=here)\n"
        "assert not {'yaml', 'tomllib', 'torch', 'grpc'} & set(sys.modules)\n"
        "(here / 'cirron.yaml').write_text('profiling: {sample_rate: 0.5}')\n"
        "assert resolve(environ={}, cwd=here, home=here).config.sample_rate == 0.5\n"
        "assert 'yaml' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(place.home)], check=True, timeout=60)
