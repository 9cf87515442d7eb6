#!/usr/bin/env python3
"""Runs the commands of docs/cluster.md: its Slurm scripts on a Slurm of one node that this test starts, and its Kubernetes jobs.

The commands of the Kubernetes jobs are run once per completion index. If Slurm cannot be started, that part is
skipped with the reason."""

import ctypes
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/cluster.md").read_text()
COMMAND = ["quantize", "SRC", "-o", "DST", "--max-shard-size", "200kB", "--quiet"]
PR_SET_CHILD_SUBREAPER = 36
SECONDS = 120  # for Slurm to start, and for its jobs to end


def blocks(language):
    """Returns {usage or kind: block} of the page's fenced blocks."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def script(name):
    (found,) = [block for block in blocks("bash") if re.search(rf"^# usage: .*\b{re.escape(name)}\b", block, re.M)]
    return found


class Unable(Exception):
    """Returns the reason why Slurm cannot be started."""


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


CONFIG = """ClusterName=tessera
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge.sock
CredType=cred/munge
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0,defer_batch
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Is a cluster of one node with its own keys, ports and folders."""

    def __init__(self, at):
        self.at, self.processes = at, []
        self.environment = dict(os.environ, SLURM_CONF=str(at / "slurm.conf"))

    def start(self):
        tools = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sinfo")
        missing = [tool for tool in tools if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin") is None]
        if missing:
            raise Unable(f"no {', '.join(missing)} here (Debian: slurmctld, slurmd, slurm-client, munge)")
        if os.geteuid() != 0:
            raise Unable("slurmd wants root")
        host = socket.gethostname().split(".")[0]
        for name in "state", "spool":
            (self.at / name).mkdir()
        (self.at / "slurm.conf").write_text(CONFIG.format(host=host, at=self.at, ports=free_ports(2)))
        key = self.at / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)
        self.daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.at}/munge.sock", f"--pid-file={self.at}/munge.pid",
                    f"--log-file={self.at}/munge.log", f"--seed-file={self.at}/munge.seed")
        self.wait(lambda: (self.at / "munge.sock").exists(), "munged made no socket")
        self.daemon("slurmctld", "-D")
        self.daemon("slurmd", "-D", "-N", host)
        self.wait(lambda: "idle" in self.ask("sinfo", "-h", "-o", "%t"), "no node became idle")

    def daemon(self, name, *args):
        path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")
        with open(self.at / f"{name}.out", "wb") as log:
            self.processes.append(subprocess.Popen([path, *args], env=self.environment, stdout=log, stderr=log, start_new_session=True))

    def wait(self, done, failing):
        end = time.monotonic() + SECONDS
        while not done():
            stopped = [process.args[0] for process in self.processes if process.poll() is not None]
            if stopped or time.monotonic() > end:
                said = "; ".join(line for log in sorted(self.at.glob("*.out")) for line in log.read_text(errors="replace").splitlines()[-2:])
                raise Unable(f"{failing}{': ' + ', '.join(stopped) + ' ended' if stopped else ''}: {said[-600:]}")
            time.sleep(0.2)

    def ask(self, *args):
        return subprocess.run(args, env=self.environment, capture_output=True, text=True).stdout

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Processes left by slurmd end with it; this process collects them (see main).
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            time.sleep(0.02)


def words(source, target):
    places = {"SRC": str(source), "DST": str(target)}
    return [places.get(word, word) for word in COMMAND]


def check_slurm_mpi(checks, work, source, reference, tool, slurm):
    module = os.path.join(os.path.dirname(os.path.realpath(tool)), "tessera_mpi.so")
    kinds = subprocess.run(["srun", "--mpi=list"], env=slurm.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if not os.path.exists(module) or "pmix" not in kinds.stdout:
        print("skipped: mpi.sbatch: this tessera was built without MPI, or this Slurm without PMIx")
        return
    (work / "mpi.sbatch").write_text(script("mpi.sbatch"))
    target = work / "slurm-mpi"
    done = subprocess.run(["sbatch", "--ntasks=3", work / "mpi.sbatch", *words(source, target)], cwd=work, env=slurm.environment,
                          capture_output=True, text=True)
    if not checks.check("Slurm: mpi.sbatch", done.returncode == 0, done.stderr):
        return
    slurm.wait(lambda: not slurm.ask("squeue", "-h").strip(), "the job does not end")
    said = "".join(log.read_text(errors="replace") for log in work.glob("slurm-*.out"))
    difference = harness.tree_difference(reference, target) if target.exists() else "nothing there"
    checks.check("Slurm: three ranks make the tree of one process", difference is None, f"{difference}: {said[-1500:]}")


def check_slurm(checks, work, source, reference, tool):
    with tempfile.TemporaryDirectory(prefix="tessera-slurm.", dir="/tmp") as folder:
        slurm = Slurm(pathlib.Path(folder))
        try:
            slurm.start()
            for name in "shards.sbatch", "finish.sbatch", "submit.sh":
                (work / name).write_text(script(name))
            slurm.environment["PATH"] = f"{work}/bin:{os.environ['PATH']}"
            target = work / "slurm"
            # The last word is the directory: as the page has it.
            args = words(source, target)
            args = [word for word in args if word not in ("-o", str(target))] + ["-o", str(target)]
            done = subprocess.run(["bash", work / "submit.sh", "3", *args], cwd=work, env=slurm.environment, capture_output=True, text=True)
            if not checks.check("Slurm: submit.sh", done.returncode == 0, done.stderr):
                return
            slurm.wait(lambda: not slurm.ask("squeue", "-h").strip(), "the jobs do not end")
            said = "".join(log.read_text(errors="replace") for log in work.glob("slurm-*.out"))
            difference = harness.tree_difference(reference, target) if target.exists() else "nothing there"
            checks.check("Slurm: the array, and the job that waits for it, make the tree of one process", difference is None,
                         f"{difference}: {said}")
            check_slurm_mpi(checks, work, source, reference, tool, slurm)
        except Unable as why:
            print(f"skipped: Slurm cannot be started here: {why}")
        finally:
            slurm.stop()


def check_kubernetes(checks, work, source, reference):
    try:
        import yaml
    except ImportError:
        print("skipped: no PyYAML here, so that the Kubernetes jobs are not read")
        return
    (block,) = blocks("yaml")
    shards, finish = yaml.safe_load_all(block)
    for job in shards, finish:
        checks.check("Kubernetes: a job", (job["apiVersion"], job["kind"]) == ("batch/v1", "Job"), job)
        spec = job["spec"]["template"]["spec"]
        mounts = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        checks.check("Kubernetes: what is mounted is there", mounts == {volume["name"] for volume in spec["volumes"]}, mounts)
    checks.check("Kubernetes: indexed", shards["spec"]["completionMode"] == "Indexed" and shards["spec"]["completions"] == 16)
    target = work / "kubernetes"

    def run(job, **environment):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        (args,) = container["args"]
        args = args.replace("/models/DeepSeek-V3-BF16", str(source)).replace("/models/DeepSeek-V3-FP8", str(target))
        args = args.replace("quantize", "quantize --max-shard-size 200kB")
        environment = dict(os.environ, PATH=f"{work}/bin:{os.environ['PATH']}", **environment)
        return subprocess.run([*container["command"], args], env=environment, capture_output=True, text=True)

    for index in range(shards["spec"]["completions"]):
        done = run(shards, JOB_COMPLETION_INDEX=str(index))
        checks.check(f"Kubernetes: index {index}", done.returncode == 0, done.stderr)
        if index == 7:
            checks.check("Kubernetes: finish, too early", run(finish).returncode == 1)
    done = run(finish)
    checks.check("Kubernetes: finish", done.returncode == 0, done.stderr)
    checks.same_tree("Kubernetes: the tree of one process", reference, target)


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with harness.checks_in(options.directory) as (checks, work):
        (work / "bin").mkdir()
        (work / "bin/tessera").symlink_to(os.path.abspath(options.tessera))
        source = harness.make_checkpoint(options.make, "deepseek-v3", work / "source", scale="tiny")
        checks.ends("one process", options.tessera, words(source, work / "reference"))
        check_kubernetes(checks, work, source, work / "reference")
        check_slurm(checks, work, source, work / "reference", options.tessera)


if __name__ == "__main__":
    main()
