"""Census: what a launch needs on the node: interpreter, packages, working copy, files, logins."""

import json
import os
import time

from clusterctl.payload.proc_files import or_none, read_word
from clusterctl.payload.tools import SECTIONS, result, section

# Asks an environment for its versions without importing anything heavy: torch takes seconds,
# importlib.metadata 30 ms, and the folders' names have the same. Runs under -S: of .pth files it
# takes the folders and leaves the code, which costs 20 ms for one editable package. json loads re,
# 12 ms; its C half alone does not.
PYTHON_CODE = """
import os, site, sys
def add_folder(folder, known=None):
    sys.path.append(folder)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".pth"))
    except OSError:
        return known
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                lines = [line.strip() for line in file]
        except OSError:
            continue
        for line in lines:
            path = os.path.join(folder, line)
            if line and not line.startswith(("#", "import ", "import\t")) and os.path.isdir(path):
                sys.path.append(path)
    return known
whole, site.addsitedir = site.addsitedir, add_folder
try:
    known = site.venv(set())
    if site.ENABLE_USER_SITE is None:
        site.ENABLE_USER_SITE = site.check_enableusersite()
    site.addsitepackages(site.addusersitepackages(known))
except Exception:
    site.addsitedir = whole
    site.main()
every, folders = {}, [folder or "." for folder in sys.path]
def key(name):
    return name.replace("_", "-").replace(".", "-").lower()
for folder in folders:
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    for name in names:
        stem, end = os.path.splitext(name)
        if end in (".dist-info", ".egg-info") and "-" in stem:
            words = stem.split("-")
            every.setdefault(key(words[0]), words[1])
found = {}
for name in sys.argv[1:]:
    found[name] = every.get(key(name))
    if found[name] is None:
        try:
            from importlib import metadata
            found[name] = metadata.version(name)
        except Exception:
            pass
cuda = None
for folder in folders:
    try:
        for line in open(folder + "/torch/version.py"):
            if line.startswith("cuda"):
                cuda = line.split("=", 1)[1].strip().strip("'\\"")
        break
    except OSError:
        continue
from _json import encode_basestring_ascii as quote
def write(value):
    if isinstance(value, dict):
        return "{%s}" % ", ".join(quote(key) + ": " + write(value[key]) for key in value)
    return "null" if value is None else quote(value)
print(write({"executable": sys.executable, "prefix": sys.prefix,
    "python": "%d.%d.%d" % sys.version_info[:3], "packages": found, "torch_cuda": cuda,
    "installed": every}))
"""
# torch's own answer. Its reason is a warning of is_available, else the error of init; the name of a
# missing library is the error of the import. Prints one line whatever happens.
TORCH_CODE = """
import sys
sys.path[:] = filter(None, sys.path)  # not the folder that the session begins in
import json, warnings
count, reason = 0, ""
try:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        import torch
        del seen[:]
        if torch.cuda.is_available():
            count = torch.cuda.device_count()
    if not count:
        reason = " ".join(str(one.message) for one in seen)
    if not count and not reason:
        torch.cuda.init()
        reason = "CUDA starts and shows no GPU (CUDA_VISIBLE_DEVICES?)"
except Exception as error:
    reason = "%s: %s" % (type(error).__name__, error)
print(json.dumps({"count": count, "reason": reason[:2000]}))
"""
DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl")  # where a driver is loaded
FILES = 20000  # of one folder whose sizes are added up
PACKAGES = ("torch", "colossalai", "av", "transformers", "diffusers", "numpy", "clusterctl")


def measure_files(paths):
    """One JSON line for each file that the launch names; of a folder the sum of what is in it."""
    lines = []
    for asked in paths:
        path = os.path.expanduser(asked)
        seen = {"path": asked, "exists": os.path.exists(path), "size": 0, "files": 0}
        if os.path.isdir(path):
            seen["is_folder"] = True
            for folder, _, names in os.walk(path, followlinks=True):
                found = [or_none(os.stat, os.path.join(folder, name)) for name in names]
                seen["size"] += sum(one.st_size for one in found if one)
                seen["files"] += len(list(filter(None, found)))
                if seen["files"] > FILES:
                    seen["more"] = True
                    break
        elif seen["exists"]:
            seen.update(size=os.stat(path).st_size, files=1)
        lines.append(json.dumps(seen))
    return "\n".join(lines)


def ask_python(python, timeout_s):
    # Twice the time: the first start of an environment on a shared folder reads many small files.
    if not is_refused("python", python):
        section("python", [python, "-B", "-S", "-c", PYTHON_CODE, *PACKAGES], 2 * timeout_s)


def ask_torch(python, timeout_s, signs=DRIVER):
    """How many GPUs torch can use, else why none. Its import takes seconds: only with a driver."""
    if any(map(os.path.exists, signs)) and not is_refused("torch", python):
        section("torch", [python, "-B", "-c", TORCH_CODE], 2 * timeout_s)


def is_refused(name, path):
    """Whether another user may have made what the head names; then the section has the reason."""
    from clusterctl.payload.files.ownership import made_by_others

    why = made_by_others(path)
    if why:
        SECTIONS[name] = result("error", None, b"", why, started=time.monotonic())
    return bool(why)


def ask_git(workdir, timeout_s):
    """Commit and changed files. Another owner is fine, but not in a world-writable folder."""
    if is_refused("git_head", workdir):
        return
    git = ["git", "--no-optional-locks", "-c", "safe.directory=*", "-c", "core.fsmonitor=false"]
    git += ["-C", workdir]
    if section("git_head", git + ["rev-parse", "HEAD"], timeout_s)["rc"] == 0:
        # With the branch as first line, so that the output is never empty.
        section("git_status", git + ["status", "--porcelain", "--branch", "-uno"], timeout_s)


def find_wandb_login():
    """yes or no; the key itself is not read."""
    home = os.path.expanduser("~")
    files = [read_word(os.path.join(home, name), "") for name in (".netrc", "_netrc")]
    found = os.environ.get("WANDB_API_KEY") or any("api.wandb.ai" in text for text in files)
    return "yes" if found else "no"
