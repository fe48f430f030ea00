"""What a user installs from a wheel or a source archive works: every module is there and imports, the command runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.gate

ROOT = Path(__file__).parents[2]
NOT_SOURCE = (".*", "build", "dist", "demo-out", "*.egg-info", "__pycache__")
IMPORT_ALL = """
import pkgutil, sys
sys.path.insert(0, sys.argv[1])
import isoinfer
assert isoinfer.__file__.startswith(sys.argv[1]), isoinfer.__file__
names = [module.name for module in pkgutil.walk_packages(isoinfer.__path__, "isoinfer.")]
for name in names:
    if not name.endswith("__main__"):
        __import__(name)
clash = {"core", "backends", "conformance", "kernels_cuda", "kernels_ascend"} & set(sys.modules)
assert not clash, clash
print(len(names))
"""
RUN_HELP = """
import sys
sys.path.insert(0, sys.argv[1])
from isoinfer.cli.app import run
sys.exit(run(["--help"]))
"""


def _run(*command: str | Path, cwd: Path) -> str:
    # -I would hide the working folder as well, but pip and build need the user's index settings.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(map(str, command), cwd=cwd, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, built in a copy so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("source") / "isoinfer"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_SOURCE), symlinks=True)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", ".", cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"])
def installed(request: pytest.FixtureRequest, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the archive has been installed, without its dependencies."""
    (archive,) = dist.glob(request.param)
    target = tmp_path_factory.mktemp("target")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--target", target)
    _run(sys.executable, "-m", "pip", "install", *options, archive, cwd=target)
    return target


def test_every_module_imports_from_the_install(installed: Path) -> None:
    count = int(_run(sys.executable, "-c", IMPORT_ALL, installed, cwd=installed))
    sources = [path for folder in _folders() for path in (ROOT / folder).glob("*.py")]
    assert count == len(sources) - 1  # the package isoinfer itself is not below itself


def test_the_command_runs_from_the_install(installed: Path) -> None:
    shown = _run(sys.executable, "-c", RUN_HELP, installed, cwd=installed)
    assert all(command in shown for command in ("generate", "chat", "batch", "backends", "explain"))
    assert (installed / "bin" / "isoinfer").is_file()


def test_the_backends_are_found_by_their_entry_points(installed: Path) -> None:
    points = next(installed.glob("isoinfer-*.dist-info")) / "entry_points.txt"
    section = points.read_text(encoding="utf-8").partition("[isoinfer.backends]\n")[2]
    assert section.split("\n\n")[0].split("\n")[:3] == [
        f"{name} = isoinfer.backends.{name}.plugin" for name in ("ascend", "cpu", "cuda")
    ]


def test_files_that_are_no_modules_are_in_both_archives(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    native = {f"backends/cpu/native/{path.name}" for path in (ROOT / "backends/cpu/native").iterdir()}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    assert {f"isoinfer/{name}" for name in native} | {"isoinfer/py.typed"} <= in_wheel
    assert not any(name.startswith(("core/", "backends/", "tests/")) for name in in_wheel)
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert native | {"LICENSE", "README.md", "core/py.typed", "pyproject.toml"} <= in_sdist


def _folders() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    roots = settings["package-dir"]
    return [_folder(package, roots) for package in settings["packages"]]


def _folder(package: str, roots: dict[str, str]) -> str:
    """Where a package's sources are: below the nearest mapped package."""
    name, rest = package, ""
    while name not in roots:
        name, _, last = name.rpartition(".")
        rest = f"/{last}{rest}"
    return roots[name] + rest
