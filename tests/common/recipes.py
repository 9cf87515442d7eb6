"""Reads the recipes of docs/ci.md, and runs their scripts as GitHub, GitLab and Jenkins do.

After a failed step, only the steps run that the recipe marks to run always. A recipe is {"env": {name: value},
"jobs": {name: [Step]}} for each CI system."""

import dataclasses
import re
import subprocess

import yaml


@dataclasses.dataclass
class Step:
    name: str
    shell: tuple  # what the lines are given to, as the product does it
    lines: str
    always: bool = False  # also behind a step that failed
    tolerated: bool = False  # its failure ends nothing
    ends: bool = False  # its failure ends what is always done, too
    env: dict = dataclasses.field(default_factory=dict)


def blocks(page, language):
    """Returns the code blocks of this language in a Markdown page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


def github(text):
    document = yaml.safe_load(text)
    jobs = {name: [Step(step["name"].lower(), ("bash", "-e", "-c"), step["run"], step.get("if") == "always()", env=step.get("env", {}))
                   for step in job["steps"] if "run" in step] for name, job in document["jobs"].items()}
    kept = {name: [step["with"]["path"] for step in job["steps"] if "upload-artifact" in step.get("uses", "") and step.get("if") == "always()"]
            for name, job in document["jobs"].items()}
    return {"env": document["env"], "jobs": jobs, "kept": kept}


def name_of(line):
    """Returns the name of a GitLab line by its content, as the other recipes name it. GitLab's lines have no names."""
    verb = line.split()[1] if line.startswith("tessera ") else "prepare"
    return "gate" if verb == "report" else verb


def gitlab(text):
    document = yaml.safe_load(text)
    shell, jobs, kept = ("bash", "-eo", "pipefail", "-c"), {}, {}
    for name, job in document.items():
        if not isinstance(job, dict) or "script" not in job:
            continue
        jobs[name] = [Step(name_of(line), shell, line) for line in job["script"]]
        # A shell of its own, which ends at the first line that fails; the job's end does not depend on it.
        jobs[name] += [Step("after", shell, "\n".join(job.get("after_script", [])), always=True, tolerated=True)]
        kept[name] = job["artifacts"]["paths"] if job["artifacts"]["when"] == "always" else []
    return {"env": document["variables"], "jobs": jobs, "kept": kept}


SH = re.compile(r"^( *)sh (returnStatus: true, script: )?'''(.*?)'''$", re.M | re.S)


def jenkins(text):
    """Reads Jenkins' stages. A stage on its own runner is a job. In Groovy, a backslash at the end of a line joins it with
    the next."""
    env = {name: value for name, value in re.findall(r"^        (\w+) = ['\"](.*)['\"]$", text, re.M)}
    at = text.rindex("\n    post {")
    stages, post = text[:at], text[at:]
    jobs, kept = {"quantize": []}, {}
    for stage in re.split(r"^        stage\(", stages, flags=re.M)[1:]:
        name = re.match(r"'(\w+)'", stage).group(1)
        job = jobs.setdefault(name.lower() if "agent {" in stage else "quantize", [])
        job += [Step(name.lower(), ("sh", "-xe", "-c"), lines.replace("\\\n", "")) for _, _, lines in SH.findall(stage)]
        if "agent {" in stage:
            kept[name.lower()] = re.findall(r"post \{ always \{ junit '(.*?)' \} \}", stage)
    assert re.match(r"\n    post \{\n        always \{", post)
    jobs["quantize"] += [Step("post", ("sh", "-xe", "-c"), lines.replace("\\\n", ""), always=True, tolerated=bool(status), ends=not status)
                         for _, status, lines in SH.findall(post)]
    kept["quantize"] = re.findall(r"^ *(?:junit|archiveArtifacts) '(.*?)'$", post, re.M)
    return {"env": env, "jobs": jobs, "kept": kept}


READERS = {"github": ("yaml", "on: pull_request", github), "gitlab": ("yaml", "stages:", gitlab), "jenkins": ("groovy", "pipeline {", jenkins)}


def read(page, name):
    """Reads the recipe of a product."""
    language, mark, reader = READERS[name]
    (text,) = [block for block in blocks(page, language) if re.search(f"^{re.escape(mark)}", block, re.M)]
    return reader(text)


def run(steps, folder, env):
    """Runs the steps of a job. Returns [(name, exit code, true if it always runs)] of the executed steps, and their output.
    After a failed step only those that always run are executed."""
    ran, told, failed = [], "", False
    for step in steps:
        if failed and not step.always:
            continue
        done = subprocess.run([*step.shell, step.lines], cwd=folder, env={**env, **step.env}, capture_output=True, text=True, timeout=300)
        ran.append((step.name, done.returncode, step.always))
        told += done.stdout + done.stderr
        failed = failed or (done.returncode != 0 and not step.tolerated)
        if done.returncode != 0 and step.ends:
            break
    return ran, told
