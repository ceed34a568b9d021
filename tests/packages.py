"""Debian packages that some tests need: `python -m tests.packages` gets them, `program` finds what they brought.

Strategy: what runs from anywhere is downloaded and unpacked into the cache, never installed: a package such as prometheus would
make a user and start a server on the machine. apt verifies it by its signed lists; where those are missing or old they are
loaded into the cache as well, so nobody has to be root. What only runs installed (`installed=True`) needs root and apt.

Tests that need one are marked `packages`. `make test-all` gets all of them and fails without one; at home such a test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdc.devstack.jars import cache_dir

REQUIRED = "TEST_PACKAGES"
"""Set to "required" by `make test-all`: a program that is missing fails its test then."""


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package and the programs that tests start from it; packages that it `needs` are unpacked into the same folder."""

    name: str
    programs: tuple[str, ...]
    installed: bool = False
    needs: tuple[str, ...] = ()
    at: str = "usr/bin"

    @property
    def folder(self) -> Path:
        """Where it is unpacked."""
        return cache_dir() / "debian" / self.name

    def find(self, program: str) -> Path | None:
        """Return where a program of it is, on this machine or in the cache."""
        own = self.folder / self.at / program
        on_path = shutil.which(program)
        return own if own.exists() else Path(on_path) if on_path else None

    @property
    def libraries(self) -> list[Path]:
        """Return the folders of libraries that came with it, for LD_LIBRARY_PATH."""
        return sorted({each.parent for each in self.folder.glob("usr/lib/*-linux-*/*.so*")})

    @property
    def missing(self) -> bool:
        """Whether one of its programs cannot be found."""
        return any(self.find(program) is None for program in self.programs)


ERLANG = (
    *("asn1", "base", "crypto", "eldap", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
    *("runtime-tools", "ssl", "syntax-tools", "tools", "xmerl"),
)
"""What RabbitMQ runs on."""

PACKAGES = (
    Package("prometheus", ("promtool", "prometheus")),
    Package("kubernetes-client", ("kubectl",)),
    Package("redis-server", ("redis-server",), needs=("redis-tools", "libjemalloc2", "liblzf1")),
    Package("systemd", ("systemd-analyze",), installed=True),
    Package("chromium", ("chromium",), installed=True),
    Package("rabbitmq-server", ("rabbitmq-server",), needs=("libsctp1", *(f"erlang-{part}" for part in ERLANG)), at="usr/lib/rabbitmq/bin"),
)


def of(name: str) -> Package:
    """Return the package of this name."""
    [package] = [each for each in PACKAGES if each.name == name]
    return package


def program(name: str) -> Path | None:
    """Return where a program is that one of the packages brings, or None."""
    [package] = [each for each in PACKAGES if name in each.programs]
    return package.find(name)


def get(packages: Sequence[Package] = PACKAGES) -> list[str]:
    """Get what is missing; return what is wrong, a line for each package that could not be had."""
    wrong = []
    for package in packages:
        if package.missing:
            failure = _install(package) if package.installed else _unpack(package)
            if failure or package.missing:
                wrong.append(f"Debian's package {package.name!r} cannot be had: {failure or 'a program of it is missing'}")
    return wrong


def _install(package: Package) -> str:
    if os.geteuid() != 0:
        return f"only root may install it: apt-get install {package.name}"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return _run(["apt-get", "update"], environment=environment) or _run(
        ["apt-get", "install", "-y", "--no-install-recommends", package.name], environment=environment
    )


def _unpack(package: Package) -> str:
    if shutil.which("apt-get") is None:
        return "there is no apt-get on this machine"
    package.folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package.folder.parent, prefix="arriving-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt leaves downloads to a user of its own
        names = [package.name, *package.needs]
        failure = _run(["apt-get", "download", *names], folder)
        if failure:
            private = _private(folder / "apt")
            failure = _run(["apt-get", *private, "update"], folder) or _run(["apt-get", *private, "download", *names], folder)
        for archive in folder.glob("*.deb"):
            failure = failure or _run(["dpkg-deb", "-x", str(archive), "unpacked"], folder)
        if not failure:
            shutil.rmtree(package.folder, ignore_errors=True)
            (folder / "unpacked").rename(package.folder)
        return failure


def _private(folder: Path) -> list[str]:
    """Return options with which apt keeps its lists there, and needs no rights elsewhere."""
    for each in ("lists/partial", "archives/partial"):
        (folder / each).mkdir(parents=True)
    return [
        *("-o", f"Dir::State::lists={folder / 'lists'}", "-o", f"Dir::Cache={folder}", "-o", f"Dir::Cache::archives={folder / 'archives'}"),
        *("-o", "Debug::NoLocking=1", "-o", f"APT::Sandbox::User={'root' if os.geteuid() == 0 else ''}"),
    ]


def _run(command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Run a command; return its last words when it fails, else nothing."""
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=600)
    words = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else words[-1] if words else f"{command[0]} failed with {done.returncode}"


if __name__ == "__main__":
    found = get()
    sys.stderr.write("".join(f"{line}\n" for line in found))
    sys.exit(1 if found else 0)
