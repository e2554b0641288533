"""What the figures were taken on: the machine and the versions."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from bench import allocator, jars, librdkafka


def describe_machine(work_dir: Path) -> dict[str, str]:
    """Cores, CPU, memory, kernel, and the file system that holds the data."""
    cpu = _field(Path("/proc/cpuinfo"), "model name")
    memory_kib = int(_field(Path("/proc/meminfo"), "MemTotal").split()[0])
    file_system = subprocess.run(
        ["df", "--output=fstype", str(work_dir)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "cores": str(os.cpu_count()),
        "CPU": cpu,
        "memory": f"{memory_kib / 2**20:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system of the data": file_system.stdout.split()[-1],
    }


def _field(path: Path, name: str) -> str:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def describe_versions() -> dict[str, str]:
    """Everything whose version may change a figure."""
    try:
        penstock = metadata.version("penstock")
    except metadata.PackageNotFoundError:
        penstock = "not installed"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=jars.BENCH
    )
    return {
        "Penstock": f"{penstock} ({commit.stdout.strip() or 'no commit'})",
        "Python": platform.python_version(),
        "Apache Kafka": jars.kafka_version(),
        "Java": jars.java_version(),
        "librdkafka": librdkafka.version(),
        "allocator without locks": allocator.name_without_locks(),
    }
