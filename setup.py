"""Build steps that pyproject.toml cannot express: modules generated from .proto files, BPF objects and sources, the
commit, and the wheel's tag.

Generated files are written next to their sources before the packages are collected, so that wheels contain them. A
checkout (an editable install) gets them from scripts/setup.sh instead.
"""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
COMMIT = Path("koordlet/COMMIT")
BTF = Path("/sys/kernel/btf/vmlinux")
FIRST_DATE_OF_ZIP = "315532800"
"""1980-01-01 in seconds since 1970: the earliest date in a zip file."""
TOOLS = {"make": "make", "clang": "clang", "llvm-strip": "llvm", "bpftool": "bpftool"}
"""Program -> Debian package."""


def check_tools() -> None:
    """End with a message that names what building the BPF objects lacks."""
    places = "/usr/sbin"  # Debian's bpftool; not in every user's PATH
    missing = [name for name in TOOLS if not (shutil.which(name) or shutil.which(name, path=places))]
    if not Path("/usr/include/bpf/bpf_helpers.h").exists():
        missing.append("bpf/bpf_helpers.h")
    if missing:
        packages = " ".join(sorted({TOOLS.get(name, "libbpf-dev") for name in missing}))
        sys.exit(f"koordinator-py: building the BPF objects needs {', '.join(missing)}: apt-get install {packages}")
    if not BTF.exists():
        sys.exit(f"koordinator-py: building the BPF objects needs a kernel with BTF: {BTF} does not exist")


def commit() -> str:
    """The commit of this checkout or source distribution; "" when it is unknown."""
    if (ROOT / COMMIT).exists():
        return (ROOT / COMMIT).read_text().strip()
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def write_commit(folder: Path) -> None:
    if commit():
        (folder / COMMIT).write_text(f"{commit()}\n")


class BuildPy(build_py):
    """Generate, then build as usual; the sources that bcc compiles on the node are installed beside the objects."""

    def run(self) -> None:
        runpy.run_path(str(ROOT / "scripts" / "gen_proto.py"))["generate"](ROOT)
        if not self.editable_mode:
            check_tools()
            subprocess.run(["make", "-C", str(ROOT / "bpf")], check=True)
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib))
            target = Path(self.build_lib) / "koordlet/probes/bpf"
            headers = [path for path in ROOT.glob("bpf/*.h") if path.name != "vmlinux.h"]
            for source in [*headers, *ROOT.glob("bpf/bcc/*.*"), *ROOT.glob("bpf/LICENSE.*")]:
                destination = target / source.relative_to(ROOT / "bpf")
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, destination)


class Sdist(sdist):
    """With the commit: an unpacked source distribution has no .git."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


class BinaryDistribution(Distribution):
    """BPF objects are compiled for the registers of one architecture."""

    def has_ext_modules(self) -> bool:
        return True


class PlatformWheel(bdist_wheel):
    """Any Python 3, this platform. The same sources give the same bytes: dates and modes are not those of the files."""

    has_files = False  # an editable install calls write_wheelfile alone

    def run(self) -> None:
        self.has_files = True
        os.environ.setdefault("SOURCE_DATE_EPOCH", FIRST_DATE_OF_ZIP)
        super().run()

    def write_wheelfile(self, *args: object, **kwargs: object) -> None:
        """The last step before the files are packed."""
        super().write_wheelfile(*args, **kwargs)
        if self.has_files:
            runpy.run_path(str(ROOT / "scripts" / "wheelfolder.py"))["move_packages"](Path(self.bdist_dir))
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildPy, "sdist": Sdist, "bdist_wheel": PlatformWheel},
)
