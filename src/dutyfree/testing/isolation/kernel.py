"""The kernel that sandbox and host share: dangerous system calls, files and sockets are refused."""

from __future__ import annotations

import socket

from dutyfree.model import Isolation
from dutyfree.testing.isolation.probe import Broken, Scene, Topic
from dutyfree.testing.isolation.program import Verdict

KERNEL = Topic("kernel")

_CALLS = (
    ("mount", "no file system can be mounted", "mount", "{home}"),
    ("bind-mount", "no directory can be bind-mounted", "bind-mount", "{home}"),
    ("umount", "nothing can be unmounted", "umount", "{home}"),
    ("pivot-root", "the root cannot be changed", "pivot-root", "{home}"),
    ("fsopen", "no file system can be mounted with fsopen", "fsopen"),
    ("open-tree", "no mount can be cloned with open_tree", "open-tree"),
    (
        "block-device",
        "a block device node that the sandbox makes cannot be opened",
        "use-new-node",
        "{home}/n",
        "b",
        "7",
        "0",
    ),
    (
        "character-device",
        "a character device node that the sandbox makes cannot be opened",
        "use-new-node",
        "{home}/n",
        "c",
        "1",
        "11",
    ),
    ("devices", "/dev has only harmless device nodes", "devices"),
    ("proc-sys", "no kernel setting can be written", "writable-below", "/proc/sys"),
    ("sys", "nothing in /sys can be written", "writable-below", "/sys"),
    ("cgroup", "no control group can be written, including its release_agent", "cgroup-control"),
    (
        "core-pattern",
        "the host's core dump handler cannot be set",
        "open-file",
        "w",
        "/proc/sys/kernel/core_pattern",
    ),
    ("modprobe", "the host's module loader cannot be set", "open-file", "w", "/proc/sys/kernel/modprobe"),
    ("sysrq", "no SysRq command can be sent to the kernel", "open-file", "w", "/proc/sysrq-trigger"),
    ("kcore", "the kernel's memory cannot be read", "open-file", "r", "/proc/kcore"),
    ("kmsg", "the kernel's log cannot be read as a file", "open-file", "r", "/proc/kmsg"),
    ("kallsyms", "the kernel's addresses are not shown", "kernel-addresses"),
    ("kernel-log", "the kernel's log cannot be read with syslog(2)", "read-kernel-log"),
    ("add-key", "no key can be added to a kernel keyring", "add-key"),
    ("keyctl", "the kernel's keyrings cannot be used", "keyctl"),
    ("request-key", "no key can be requested from the kernel", "request-key"),
    ("init-module", "no module can be loaded from memory", "init-module"),
    ("finit-module", "no module can be loaded from a file", "finit-module"),
    ("delete-module", "no module can be unloaded", "delete-module"),
    ("kexec-load", "no other kernel can be loaded", "kexec-load"),
    ("kexec-file-load", "no other kernel can be loaded from a file", "kexec-file-load"),
    ("reboot", "the machine cannot be restarted", "reboot"),
    ("bpf", "no BPF object can be made", "bpf"),
    ("perf", "performance counters cannot be opened", "perf-event-open"),
    ("userfaultfd", "page faults cannot be delayed with userfaultfd", "userfaultfd"),
    ("io-uring", "no io_uring can be made", "io-uring-setup"),
    ("aio", "no asynchronous I/O context can be created, since the machine has a limited number of them", "io-setup"),
    ("socket-filter", "no filter program can be attached to a socket", "attach-filter", "one"),
    ("port-filter", "no filter program can be attached to the sockets of a port", "attach-filter", "reuseport"),
    ("file-handles", "no file can be opened by its handle", "open-by-handle-at"),
    ("setns", "no namespace can be entered", "setns"),
    ("tiocsti", "no input can be injected into a terminal with TIOCSTI", "tiocsti"),
    ("tioclinux", "the console cannot be controlled with TIOCLINUX", "tioclinux"),
    ("adjust-clock", "the clock cannot be adjusted", "adjust-clock"),
    ("set-clock", "the clock cannot be set", "set-clock"),
    ("accounting", "process accounting cannot be changed", "acct"),
    ("swap", "swap space cannot be added", "swapon"),
    ("ports", "hardware I/O ports cannot be accessed", "port-access"),
    ("i386-calls", "32-bit (i386) system calls are refused", "call-i386"),
    ("x32-calls", "x32 system calls are refused", "call-x32"),
)

for _name, _promise, *_question in _CALLS:
    KERNEL.denies(_name, _promise, Isolation.CONTAINER, *_question)

for _kind in ("user", "mount", "pid", "net", "uts", "ipc", "cgroup"):
    _promise = f"no {_kind} namespace can be made"
    KERNEL.denies(f"unshare-{_kind}", f"{_promise} by unshare", Isolation.CONTAINER, "unshare", _kind)
for _kind in ("user", "mount"):
    _promise = f"no {_kind} namespace can be made"
    KERNEL.denies(f"clone-{_kind}", f"{_promise} by clone", Isolation.CONTAINER, "clone", _kind)
    KERNEL.denies(f"clone3-{_kind}", f"{_promise} by clone3", Isolation.CONTAINER, "clone3", _kind)

_SOCKETS = (
    ("raw", "raw IP", socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    ("raw6", "raw IPv6", socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
    ("packet", "packet", socket.AF_PACKET, socket.SOCK_RAW, 0),
    ("vsock", "VM", socket.AF_VSOCK, socket.SOCK_STREAM, 0),
    ("alg", "kernel crypto", socket.AF_ALG, socket.SOCK_SEQPACKET, 0),
    *(
        (f"netlink-{name}", f"netlink ({words})", socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        for name, words, protocol in (
            ("user", "between programs", 2),
            ("diagnosis", "other sockets", 4),
            ("audit", "audit", 9),
            ("devices", "devices of the machine", 15),
            ("generic", "any subsystem", 16),
        )
    ),
)

for _name, _words, _family, _type, _protocol in _SOCKETS:
    KERNEL.denies(
        f"{_name}-socket",
        f"no {_words} socket can be opened",
        Isolation.CONTAINER,
        "socket",
        str(int(_family)),
        str(int(_type)),
        str(_protocol),
    )


@KERNEL.probe("keys", "/proc/keys shows no key of the host", Isolation.CONTAINER, shared_kernel=True)
async def keys(scene: Scene) -> None:
    answer = await scene.ask("read-file", "/proc/keys")
    if answer.verdict is Verdict.VALUE and answer.text.strip():
        raise Broken(str(answer))
    scene.note(str(answer))
