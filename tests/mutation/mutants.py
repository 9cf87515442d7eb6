"""Plants faults in the GPU kernels one by one, and prints which test finds each: ./dev gpu mutants.

Only the source with the fault is compiled again. It is linked with the test before the archive of correct objects,
which takes a minute on 16 cores. A test that fails has found the fault, and is stopped at the first failure. All
tests must pass first with the correct kernels. "shaken TEST" compiles both versions with random delays
(hopper::shake). "check_fences" only examines the PTX. Exit code 0: all faults are found that the table says; 1: not,
or the table does not match the sources; 5: no GPU.

    mutants.py --check                      checks that each text of the table is in its source once
    mutants.py --pack DIR --build BUILD     copies the parts of a build that --run needs
    mutants.py --run DIR [--only PATTERN]   needs a GPU and nvcc
"""

import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import threading
import time

from mutants_table import MUTANTS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KERNELS = os.path.join(ROOT, "kernels", "cuda")
FLAGS = ["-O3", "-std=c++17", "-DNDEBUG", "-I" + ROOT, "-gencode=arch=compute_90a,code=sm_90a"]
FMAD = {"fast_dequant.cu", "mx_dequant.cu"}  # as kernels/cuda/meson.build has it
CHECK_FENCES = os.path.join(ROOT, "tests", "gpu", "check_fences.py")
SECONDS = 90  # a test that hangs is a test that fails
FOLDERS = ("common", "formats", "kernels", "quantize", "convert", "verify", "report", "cli")
# Inputs of `verify CHECK`: a generated model, and its quantization.
GIVEN = {"gemm": ("deepseek-v3", []), "mla": ("deepseek-v3", []), "epilogue": ("llama", ["--scheme", "int8-channel"]),
         "dequant": ("llama", ["--scheme", "int4-weight-only"])}
TESTS = ("test_gemm", "test_grouped", "test_int", "test_index", "test_int8", "test_mla", "test_mx", "test_prefill", "test_races", "test_forward")


def source(name):
    with open(os.path.join(KERNELS, name), encoding="utf-8") as file:
        return file.read()


def planted():
    return [m for m in MUTANTS if m[1] is not None]


def check():
    wrong = [f"{name}: {source(name).count(text)} times: {text!r}" for name, text, *_ in planted() if source(name).count(text) != 1]
    print("\n".join(wrong) or f"{len(planted())} faults, each text is there once; {len(MUTANTS) - len(planted())} rows without a text")
    return 1 if wrong else 0


def of_one_source(test):
    """Returns True if the test of the correct kernels also depends on the file with the fault."""
    return test == "check_fences" or test.startswith("shaken ")


def units(name):
    """Returns the sources to compile again if this file changes."""
    if name.endswith(".cu"):
        return [name]
    users = [n for n in os.listdir(KERNELS) if n != name and f'#include "kernels/cuda/{name}"' in source(n)]
    return sorted({unit for user in users for unit in units(user)})


def pack(build, to):
    """Makes object files of the tests, and archives of all kernels and their dependencies."""
    shutil.rmtree(to, ignore_errors=True)
    os.makedirs(to)
    for test in TESTS:
        shutil.copy(os.path.join(build, "tests", "gpu", test + ".p", test + ".cu.o"), os.path.join(to, test + ".o"))
    archives = {"cuda.a": glob.glob(os.path.join(build, "kernels", "cuda", "*.p", "*.o")),
                "host.a": [o for folder in FOLDERS for o in glob.glob(os.path.join(build, folder, "**", "*.p", "*.o"), recursive=True)
                             if os.path.basename(o) != "main.c.o" and ".so.p" not in o and
                             not o.startswith(os.path.join(build, "kernels", "cuda"))]}
    shutil.copy(os.path.join(build, "cli", "tessera.p", "main.c.o"), os.path.join(to, "tessera.o"))
    for tool in ("cli/tessera", "tests/make/make_checkpoint"):
        shutil.copy(os.path.join(build, tool), to)
    for line in subprocess.run(["ldd", os.path.join(to, "tessera")], capture_output=True, text=True, check=True).stdout.splitlines():
        if any(name in line for name in ("libzstd", "liburing", "libxxhash")):
            shutil.copy(line.split()[2], to)
    for archive, objects in archives.items():
        subprocess.run(["ar", "qcsD", os.path.join(to, archive), *sorted(objects)], check=True)
    subprocess.run(["strip", "--strip-debug", *glob.glob(os.path.join(to, "*.[ao]")), os.path.join(to, "tessera")], check=True)


class Bench:
    def __init__(self, parts, work, gpu_jobs):
        self.parts, self.work = parts, work
        self.gpu = threading.Semaphore(gpu_jobs)

    def path_of(self, unit, overlay):
        """Returns the path of the changed file, which replaces the one of the tree."""
        changed = os.path.join(overlay, "kernels", "cuda", unit)
        return changed if os.path.exists(changed) else os.path.join(KERNELS, unit)

    def compile(self, unit, to, overlay, shaken):
        flags = ["-I" + overlay, *FLAGS, *(["-fmad=false"] if unit in FMAD else []), *(["-DTSR_SHAKEN"] if shaken else [])]
        return subprocess.run(["nvcc", *flags, "-c", self.path_of(unit, overlay), "-o", to], capture_output=True, text=True)

    def compile_all(self, name, test, folder):
        """Returns (objects of the sources that include `name`, nvcc's messages on failure)."""
        objects = []
        for unit in units(name):
            if test.startswith("test_") and "races" not in test and "fp8" in unit and ("grouped" in unit) != ("grouped" in test):
                continue  # a file that the test does not use
            if "int8" in unit and test.split()[0] in ("test_gemm", "test_grouped") or "fp8" in unit and test.startswith("test_int8"):
                continue
            objects.append(os.path.join(folder, unit + ".o"))
            done = self.compile(unit, objects[-1], folder, test.startswith("shaken "))
            if done.returncode != 0:
                return [], done.stderr.strip()[-300:]
        return objects, None

    def link(self, test, objects, to):
        main = "tessera" if test == "verify" else test
        inputs = [os.path.join(self.parts, main + ".o"), *objects, os.path.join(self.parts, "host.a"), os.path.join(self.parts, "cuda.a"),
                  os.path.join(self.parts, "host.a"), *("-Xlinker=" + path for path in glob.glob(os.path.join(self.parts, "lib*.so*")))]
        return subprocess.run(["nvcc", "-o", to, *inputs, "-lpthread", "-lm", "-ldl", "-lrt"], capture_output=True, text=True)

    def make_given(self):
        """Makes the checkpoints for verify."""
        tessera, make = (os.path.join(self.parts, tool) for tool in ("tessera", "make_checkpoint"))
        for check, (model, words) in GIVEN.items():
            source = os.path.join(self.work, model)
            if not os.path.exists(source):
                subprocess.run([make, model, "-o", source], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([tessera, "quantize", source, "-o", os.path.join(self.work, check), "--quiet", *words], check=True)

    def command(self, program, words):
        """Returns the command of a test. For `verify CHECK` the words after it are its options."""
        if words[0] != "verify":
            return [program, *words[1:]]
        return [program, "verify", words[1], os.path.join(self.work, words[1]), "--device", "cuda", *words[2:]]

    def run(self, program, words):
        """Returns the test's message if it failed; None: it passed."""
        with self.gpu:
            process = subprocess.Popen(["stdbuf", "-oL", *self.command(program, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            late = threading.Timer(SECONDS, process.kill)
            late.start()
            last, failure = "", None
            for line in process.stdout:
                last = line.strip() or last
                if line.startswith("FAILED") or line.startswith("  FAIL "):
                    failure = line.strip() if line.startswith("FAILED") else line.strip() + ": " + process.stdout.readline().strip()
                    process.kill()
                    break
            hung = not late.is_alive()
            late.cancel()
            code = process.wait()
        if failure:
            return failure
        return f"no end within {SECONDS} s" if hung else None if code == 0 else f"exit code {code}: {last}"

    def mutant(self, number):
        """Returns (what failed, seconds); "" if no test failed."""
        name, text, instead, test, _ = planted()[number]
        began = time.monotonic()
        folder = os.path.join(self.work, str(number))
        overlay = os.path.join(folder, "kernels", "cuda")
        os.makedirs(overlay)
        # A header is found beside the source that includes it by its path from the root: the whole folder is shadowed.
        with open(os.path.join(overlay, name), "w", encoding="utf-8") as file:
            file.write(source(name).replace(text, instead))
        test = test or "test_gemm small"
        if test == "check_fences":
            found = self.check_fences(name, folder)
            shutil.rmtree(folder)
            return found or "", time.monotonic() - began, False
        objects, failed = self.compile_all(name, test, folder)
        if failed is not None:
            return f"does not compile: {failed}", time.monotonic() - began, True
        program = os.path.join(folder, "test")
        words = test.removeprefix("shaken ").split()
        done = self.link(words[0], objects, program)
        if done.returncode != 0:
            return f"does not link: {done.stderr.strip()[-300:]}", time.monotonic() - began, True
        found = self.run(program, words)
        shutil.rmtree(folder)
        return found or "", time.monotonic() - began, False

    def check_fences(self, name, overlay):
        """Returns the text that is missing in the sources that are or include `name`, or None."""
        done = subprocess.run([sys.executable, CHECK_FENCES, "--include", overlay, *(self.path_of(unit, overlay) for unit in units(name))],
                              capture_output=True, text=True)
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        return failed[0] if failed else None if done.returncode == 0 else done.stderr

    def sound(self, test, name):
        """Returns a test's failure with the correct kernels. `name` is the file of the fault."""
        program = os.path.join(self.work, f"sound {test} {name}")
        os.makedirs(program + " parts")
        if test == "check_fences":
            return self.check_fences(name, program + " parts")
        objects, failed = self.compile_all(name, test, program + " parts") if of_one_source(test) else ([], None)
        if failed is not None:
            return failed
        words = test.removeprefix("shaken ").split()
        done = self.link(words[0], objects, program)
        return done.stderr.strip()[-500:] if done.returncode != 0 else self.run(program, words)


def run(parts, only, jobs, gpu_jobs):
    parts = os.path.abspath(parts)
    work = os.path.join(parts, "work")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (parts, os.environ.get("LD_LIBRARY_PATH"))))
    bench = Bench(parts, work, gpu_jobs)
    bench.make_given()
    chosen = [i for i, m in enumerate(planted()) if re.search(only, f"{m[0]} {m[4]}")]
    broken, missed, no_gpu, began = 0, 0, False, time.monotonic()
    # The longest to compile first.
    chosen.sort(key=lambda i: -sum(len(source(u)) * (3 if "fp8" in u or "stream" in u else 1) for u in units(planted()[i][0])))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        mutants = {i: pool.submit(bench.mutant, i) for i in chosen}
        tests = {(planted()[i][3], planted()[i][0] if of_one_source(planted()[i][3]) else "") for i in chosen if planted()[i][3]}
        with concurrent.futures.ThreadPoolExecutor(len(tests) or 1) as few:
            sound = {pair: few.submit(bench.sound, *pair) for pair in sorted(tests)}
        for (test, _), answer in sound.items():
            if answer.result() is not None:
                broken += 1
                no_gpu = no_gpu or answer.result().startswith("exit code 5")
                print(f"FAILED with the sound kernels: {test}: {answer.result()}", flush=True)
        for i in sorted(chosen):
            name, _, _, test, what = planted()[i]
            found, seconds, failed = mutants[i].result()
            verdict = "BROKEN" if failed else "found" if found and test else "FOUND after all" if found else "missed" if test else "survives"
            broken += failed or verdict == "FOUND after all"
            missed += verdict == "missed"
            print(f"{verdict:8} {name:24} {what:58} {test or '':25} {seconds:5.1f} s  {found[:110]}", flush=True)
    for name, text, _, _, why in MUTANTS:
        if text is None:
            print(f"{'no card':8} {name:24} {why}")
    print(f"{len(chosen)} faults planted, {missed} missed, {broken} broken; {time.monotonic() - began:.0f} s")
    return 5 if no_gpu else 1 if broken or missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--pack", metavar="DIR")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--run", metavar="DIR")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--gpu-jobs", type=int, default=4)
    options = parser.parse_args()
    code = check()
    if code == 0 and options.pack:
        pack(options.build, options.pack)
    if code == 0 and options.run:
        code = run(options.run, options.only, options.jobs, options.gpu_jobs)
    return code


if __name__ == "__main__":
    sys.exit(main())
