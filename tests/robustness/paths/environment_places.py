"""Tests sources and outputs on read-only file systems, without inodes, of other kinds, and without permission.

Runs in a mount namespace, which needs root; otherwise it is skipped."""

import ctypes
import errno
import os
import shutil
import subprocess

import harness

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
NOBODY = 65534
# The command that makes each file system, for a file of this many MiB; None: it needs no file.
SYSTEMS = {
    "tmpfs": None, "ramfs": None, "overlay": None, "ext4": (["mkfs.ext4", "-q"], 64), "ext4 without a journal": (["mkfs.ext4", "-q", "-O", "^has_journal"], 64),
    "ext2": (["mkfs.ext2", "-q"], 64), "xfs": (["mkfs.xfs", "-q"], 320), "btrfs": (["mkfs.btrfs", "-q"], 128), "vfat": (["mkfs.vfat"], 64),
    "exfat": (["mkfs.exfat"], 64),
}
SAMPLE = ("ramfs", "overlay", "ext2")
WRITING = ["quantize SRC -o DST --max-shard-size 400kB", "convert FP8 -o DST --to bf16", "convert SRC -o DST --to archive", "convert SRC -o DST --to tp --tp 2",
           "quantize SRC -o DST --io direct"]
READING = ["inspect SRC", "verify FP8 --against SRC", "verify --manifest FP8", "verify gemm FP8 --against SRC --device cpu --sample 2",
           "verify forward FP8 --against SRC --device cpu --count 2", "diff SRC FP8", "compare-schemes SRC --sample 2", "plan-schemes SRC --bits 6",
           "finish FP8", "quantize SRC -o FP8", "report REPORT", "quantize SRC -o ABSENT --dry-run"]


def own_namespace():
    """Returns the reason why this process cannot have its own mounts, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        return os.strerror(ctypes.get_errno())
    return None


def mount(*words):
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode != 0 else None


class Places:
    def __init__(self, checks, options, work):
        self.checks, self.options, self.work, self.tool = checks, options, work, os.path.abspath(options.tessera)
        self.where = {"SRC": work / "src", "FP8": work / "fp8", "DST": work / "dst", "ABSENT": work / "absent", "REPORT": work / "fp8/quantization_report.json"}
        harness.make_checkpoint(options.make, "llama", work / "src", scale="tiny")
        self.run("quantize SRC -o FP8", {})
        self.whole = {}
        for command in WRITING:
            self.run(command, {})
            self.whole[command] = self.tree(work / "dst")
            shutil.rmtree(work / "dst")

    def run(self, command, elsewhere, before=None):
        places = {**self.where, **elsewhere}
        words = [str(places.get(word, word)) for word in command.split()]
        ended = subprocess.run([self.tool, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=300, preexec_fn=before)
        return ended.returncode, ended.stdout, ended.stderr

    @staticmethod
    def tree(folder):
        """Returns the bytes of the output, without records of Tessera and files of the file system."""
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
                if path.is_file() and ".tessera" not in path.parts and path.name != "tessera.manifest.json"} if folder.is_dir() else {}

    def refused(self, title, run, code, word):
        self.checks.check(f"{title}: exit code", run[0] == code, f"{run[0]}, not {code}: {run[2][-300:]}")
        self.checks.check(f"{title}: one sentence with the reason", run[2].count("\n") == 1 and word in run[2], run[2][-300:])

    def same(self, title, run, command, target):
        self.checks.check(f"{title}: as ever", run[0] == 0 and self.tree(target) == self.whole[command], f"{run[0]}: {run[2][-300:]}")


def read_only(p):
    """Tests a source, a finished output and a new one where nothing can be written."""
    folder = p.work / "sealed"
    shutil.copytree(p.where["SRC"], folder / "src")
    shutil.copytree(p.where["FP8"], folder / "fp8")
    usual = {command: p.run(command, {"SRC": folder / "src", "FP8": folder / "fp8", "REPORT": folder / "fp8/quantization_report.json"})[0] for command in READING}
    why = mount("--bind", folder, folder) or mount("-o", "remount,bind,ro", folder)
    if why:
        print(f"skipped: a mount that is read-only: {why}")
        return
    sealed = {"SRC": folder / "src", "FP8": folder / "fp8", "REPORT": folder / "fp8/quantization_report.json"}
    for command in READING:
        code, _, stderr = p.run(command, sealed)
        p.checks.check(f"read-only: {command}: as ever", code == usual[command], f"{code}, not {usual[command]}: {stderr[-300:]}")
    for command in WRITING:
        p.same(f"a read-only source: {command}", p.run(command, sealed), command, p.work / "dst")
        shutil.rmtree(p.work / "dst", ignore_errors=True)
        p.refused(f"a read-only output: {command}", p.run(command, {"DST": folder / "new"}), 4, os.strerror(errno.EROFS))
    for command in READING:
        p.refused(f"a read-only report: {command}", p.run(f"{command} --json {folder}/a.json", {}), 4, os.strerror(errno.EROFS))
    subprocess.run(["umount", folder], check=True)


def not_allowed(p):
    """Tests a user without permission to read or write the files."""
    closed = p.work / "closed"
    shutil.copytree(p.where["SRC"], closed / "src")
    shutil.copytree(p.where["FP8"], closed / "fp8")
    (closed / "src/model.safetensors").chmod(0)
    p.work.chmod(0o755)

    def nobody():
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    if subprocess.run([p.tool, "--version"], preexec_fn=nobody, capture_output=True).returncode != 0:
        print("skipped: another user cannot start the tool here")
        return
    denied = os.strerror(errno.EACCES)
    p.refused("no right to read a shard", p.run("inspect SRC", {"SRC": closed / "src"}, nobody), 4, f"model.safetensors: cannot open: {denied}")
    p.refused("no right to make an output", p.run("quantize SRC -o DST", {"DST": closed / "new"}, nobody), 4, denied)
    p.refused("no right to write a report", p.run(f"inspect SRC --json {closed}/a.json", {}, nobody), 4, denied)
    code, _, stderr = p.run("verify FP8 --against SRC", {"FP8": closed / "fp8"}, nobody)
    p.checks.check("another's finished output is verified", code == 0, f"{code}: {stderr}")
    code, _, stderr = p.run("quantize SRC -o FP8", {"FP8": closed / "fp8"}, nobody)
    p.checks.check("another's finished output is complete already", code == 0 or denied in stderr, f"{code}: {stderr}")
    (closed / "src").chmod(0)
    p.refused("no right to enter", p.run("inspect SRC", {"SRC": closed / "src"}, nobody), 4, denied)


def full_inodes(p):
    """Tests a file system without space for one more name, after each number of names."""
    folder = p.work / "names"
    folder.mkdir()
    ended = {}
    for command in WRITING if p.options.all else WRITING[:2]:
        for inodes in range(2, 24, 1 if p.options.all else 3):
            why = mount("-t", "tmpfs", "-o", f"nr_inodes={inodes}", "tmpfs", folder)
            if why:
                print(f"skipped: full inodes: {why}")
                return
            title = f"{inodes} inodes: {command}"
            run = p.run(command, {"DST": folder / "dst"})
            ended[run[0]] = ended.get(run[0], 0) + 1
            if run[0] != 0:
                p.refused(title, run, 4, "inode" if "inode" in run[2] else os.strerror(errno.ENOSPC))
                p.checks.check(f"{title}: nothing looks like a model", not (folder / "dst/config.json").exists())
                subprocess.run(["mount", "-o", "remount,nr_inodes=0", folder], check=True)
                run = p.run(command, {"DST": folder / "dst"})
            p.same(title, run, command, folder / "dst")
            subprocess.run(["umount", folder], check=True)
    p.checks.check("inodes: some runs had too few, some enough", ended.keys() == {0, 4}, ended)
    print(f"full inodes: {ended.get(4, 0)} refused, each completed with more; {ended.get(0, 0)} fitted")


def lay(name, folder, image):
    """Mounts a file system. Returns the reason of a failure, or None."""
    folder.mkdir()
    if name == "overlay":
        for part in ("lower", "upper", "work"):
            (image.parent / name / part).mkdir(parents=True)
        parts = ",".join(f"{word}dir={image.parent / name / word}" for word in ("lower", "upper", "work"))
        return mount("-t", "overlay", "-o", parts, "overlay", folder)
    if SYSTEMS[name] is None:
        return mount("-t", name, name, folder)
    command, size = SYSTEMS[name]
    if shutil.which(command[0]) is None:
        return f"no {command[0]}"
    with open(image, "wb") as file:
        file.truncate(size << 20)
    made = subprocess.run([*command, image], capture_output=True, text=True)
    return made.stderr.strip() if made.returncode != 0 else mount("-o", "loop", image, folder)


def foreign(p):
    """The bytes are the same from and to every file system of this machine."""
    tried = []
    for name in SYSTEMS if p.options.all else SAMPLE:
        folder, image = p.work / f"on {name}", p.work / f"{name}.image"
        why = lay(name, folder, image)
        if why:
            print(f"skipped: {name}: {why}")
            continue
        tried.append(name)
        for part in ("src", "fp8"):
            shutil.copytree(p.where[part.upper()], folder / part)
        there = {"SRC": folder / "src", "FP8": folder / "fp8", "DST": folder / "dst"}
        for command in WRITING:
            p.same(f"{name}: {command}", p.run(command, there), command, folder / "dst")
            p.same(f"{name}: {command}, complete already", p.run(command, there), command, folder / "dst")
            code, _, stderr = p.run("verify --manifest DST", there)
            p.checks.check(f"{name}: {command}: its manifest holds", code == 0, f"{code}: {stderr}")
            shutil.rmtree(folder / "dst")
            code, _, stderr = p.run(f"{command} --link hard" if "--io" not in command else command, {**there, "SRC": p.where["SRC"], "FP8": p.where["FP8"]})
            p.checks.check(f"{name}: {command}, links to another file system", code == 0 and p.tree(folder / "dst") == p.whole[command], f"{code}: {stderr}")
            shutil.rmtree(folder / "dst", ignore_errors=True)
        subprocess.run(["umount", folder], check=True)
        image.unlink(missing_ok=True)
    print(f"file systems: {', '.join(tried)}")


def check(checks, options, work):
    why = own_namespace()
    if why:
        print(f"skipped: places need root and a mount namespace: {why}")
        return
    p = Places(checks, options, work)
    read_only(p)
    not_allowed(p)
    full_inodes(p)
    foreign(p)
