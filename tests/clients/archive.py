"""Packages of other releases of Debian, from the archive that this system has its own from. They are downloaded by an apt
that has no other sources and nothing of this system's state; nothing is installed."""

import os
import re
import shutil
import subprocess

from harness import Skip

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def ask(*argv, **how):
    """What a program prints that must be had from elsewhere, or looks at what was: the case is skipped where it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise Skip(f"{' '.join(argv[:3])} failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    return done.stdout


def address():
    """The archive's."""
    with open("/etc/os-release", encoding="utf-8") as f:
        codename = re.search(r"^VERSION_CODENAME=(\S+)", f.read(), re.M)
    shown = ask("apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")
    for row in shown.splitlines():
        release, component, uri = row.split()
        if codename and (release, component) == (codename[1], "main") and os.path.exists(KEYS):
            return uri
    raise Skip("this is no Debian with an archive, and the keys for it")


def download(release, names, folder, source=False, architecture="amd64"):
    """Fills a folder with a release's packages, or with the tar files of the sources of such; the files' paths."""
    state = folder + ".apt"
    for path in (state, folder):
        shutil.rmtree(path, ignore_errors=True)
    for part in ("lists/partial", "cache/archives/partial", "parts"):
        os.makedirs(os.path.join(state, part))
    os.makedirs(folder)
    files = {
        "status": "",
        "sources.list": f"{'deb-src' if source else 'deb'} [signed-by={KEYS}] {address()} {release} main\n",
        "apt.conf": f'APT::Architecture "{architecture}"; APT::Architectures {{ "{architecture}"; }};\n'
                    'APT::Sandbox::User "root";\n'
                    f'Acquire::Languages "none"; Dir::State::lists "{state}/lists"; Dir::State::status "{state}/status";\n'
                    f'Dir::Cache "{state}/cache"; Dir::Etc::sourcelist "{state}/sources.list";\n'
                    f'Dir::Etc::sourceparts "{state}/parts"; Dir::Etc::preferencesparts "{state}/parts";\n',
    }
    for name, text in files.items():
        with open(os.path.join(state, name), "w", encoding="utf-8") as f:
            f.write(text)
    env = dict(os.environ, APT_CONFIG=os.path.join(state, "apt.conf"))
    ask("apt-get", "update", "-qq", "--error-on=any", env=env)
    how = ("source", "--download-only", "--tar-only") if source else ("download",)
    ask("apt-get", *how, "-qq", *names, env=env, cwd=folder)
    shutil.rmtree(state)
    return paths(folder)


def paths(folder):
    """The files of a folder, if there is one."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []
