"""What a hostile process tries: each probe returns what it got, or fails. Needs Python alone."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

KEY = 0xFED0
"""Of shared memory and semaphores that the first attack leaves for the next."""

WOULD_STAY = ("device node", "mount", "user namespace")
"""Probes that would change the machine where nothing forbids them to root."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    """A function of the C library, which says by a negative number that it failed."""
    done = getattr(_LIBC, name)(*arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def connected(family, kind, address, protocol=0):
    with socket.socket(family, kind, protocol) as end:
        end.settimeout(2)
        end.connect(address)
        end.sendall(b"truth?")
        return end.recv(100).decode()


def netlink():
    """Interfaces with their states: an address of the outside would be another one than lo."""
    found = [name for _, name in socket.if_nameindex() if name != "lo"]
    return found or no()


def no():
    raise OSError("nothing")


def written(path):
    with open(path, "a"):
        return "opened for writing"


def daemon():
    """Two forks, so that nobody's child is left, which sleeps."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/usr/bin/sleep", ["sleep", os.environ["MARK"]])
        os._exit(0)
    time.sleep(0.2)
    return "left"


def keyring():
    add, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
    found = _LIBC.syscall(keyctl, 10, -3, b"user", b"left", 0)
    _LIBC.syscall(add, b"user", b"left", b"secret", 6, -3)
    return found if found > 0 else no()


def probes(told):
    """Name of what is tried to how. Told: addresses of servers, a file of the truth, a pid."""
    truth, pid, port = told["truth"], told["pid"], told["port"]
    tcp, udp = socket.SOCK_STREAM, socket.SOCK_DGRAM
    return {
        "unix socket by path": lambda: connected(socket.AF_UNIX, tcp, told["unix"]),
        "abstract unix socket": lambda: connected(socket.AF_UNIX, tcp, told["abstract"]),
        "tcp": lambda: connected(socket.AF_INET, tcp, ("127.0.0.1", port)),
        "mptcp": lambda: connected(socket.AF_INET, tcp, ("127.0.0.1", port), 262),
        "udp": lambda: connected(socket.AF_INET, udp, ("127.0.0.1", told["udp"])),
        "interfaces by netlink": netlink,
        "raw packets": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close() or "made",
        "read": lambda: open(truth).read(),
        "status": lambda: os.stat(truth).st_size,
        "list": lambda: os.listdir(os.path.dirname(truth)),
        "chmod": lambda: os.chmod(truth, 0o644) or "done",
        "utime": lambda: os.utime(truth) or "done",
        "attribute": lambda: os.setxattr(truth, "user.left", b"x") or "done",
        "watch": lambda: call("inotify_add_watch", call("inotify_init1", 0), truth.encode(), 0xFFF),
        "kill": lambda: os.kill(pid, 0) or "done",
        "signal to a group": lambda: os.killpg(pid, 0) or "done",
        "prlimit": lambda: __import__("resource").prlimit(pid, 7),
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19) or "done",
        "affinity": lambda: os.sched_setaffinity(pid, {0}) or "done",
        "processes": lambda: [p for p in os.listdir("/proc") if p.isdigit() and int(p) > 9] or no(),
        "environ": lambda: open(f"/proc/{pid}/environ").read(),
        "trace": lambda: call("ptrace", 0x4206, pid, None, None),
        "passwords": lambda: open("/etc/passwd").read(),
        "hashes of passwords": lambda: open("/etc/shadow").read(),
        "kernel settings": lambda: written("/proc/sys/kernel/core_pattern"),
        "kernel log": lambda: open("/dev/kmsg").read(1),
        "device node": lambda: os.mknod("kmsg", 0o20600, os.makedev(1, 11)) or "made",
        "mount": lambda: call("mount", b"none", os.getcwd().encode(), b"tmpfs", 0, None),
        "user namespace": lambda: told["nested"] and call("unshare", 0x10000000) or no(),
        "programs changed": lambda: written("/usr/bin/env"),
        "observation changed": lambda: written("/attack/seen/changed"),
        "shared memory": lambda: call("shmget", KEY, 4096, 0),
        "semaphores": lambda: call("semget", KEY, 1, 0),
        "keyring": keyring,
    }


def leave():
    """Leave what a next attack could find, and a process."""
    call("shmget", KEY, 4096, 0o1666)
    call("semget", KEY, 1, 0o1666)
    return daemon()


def main():
    """Try everything; print what was got by name, and what capabilities there are."""
    told = json.loads(sys.argv[1])
    if not told["outside"]:
        from sandbox import leave_keyring

        leave_keyring()
    got = {}
    for name, probe in probes(told).items():
        if told["outside"] and name in WOULD_STAY:
            continue
        try:
            got[name] = repr(probe())
        except OSError:
            continue
    if told.get("leave"):
        got["daemon"] = leave()
    status = open("/proc/self/status").read()
    got["capabilities"] = status.partition("CapEff:")[2].split()[0]
    print(json.dumps(got))


if __name__ == "__main__":
    signal.alarm(60)
    assert subprocess.run(["/bin/true"]).returncode == 0  # programs of the system run
    main()
