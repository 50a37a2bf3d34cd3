"""Scripts that checks run in a sandbox to leave files, processes and names whose fate they check afterwards."""

from __future__ import annotations

VANDALISM = r"""
for place in . /root /home /tmp /var/tmp /etc /srv /opt /usr/local /usr/local/bin /dev/shm; do (
    cd $place || exit
    echo new > new; echo hidden > .hidden; ln -s /nowhere dangling; ln new hard; mkfifo fifo
    mkdir -p deep/er closed; echo new > deep/er/new; echo new > closed/new; chmod 000 closed; chmod 1733 .
) done 2> /dev/null
rm -rf /etc/issue /etc/apt /usr/local/share; echo changed > /etc/passwd; mv /etc/group /etc/moved
touch -d 2001-01-01 /etc; head -c 3000000 /dev/zero > /tmp/big; truncate -s 1G /tmp/sparse; rm -rf /tmp/closed
exit 0
"""
"""Writes, changes, moves, locks (mode 000) and removes files in all directories that it can write to."""

DAEMONS = """
sleep {mark} & setsid sleep {mark} & (setsid sleep {mark} > /dev/null 2>&1 < /dev/null &)
(trap '' TERM HUP INT; setsid sh -c 'trap "" TERM HUP; sleep {mark}' > /dev/null 2>&1 < /dev/null &)
"""

NAMES = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
tcp, unix = socket.socket(), socket.socket(socket.AF_UNIX)
tcp.bind(("127.0.0.1", int(sys.argv[1]))); tcp.listen()
unix.bind("\\0conformance"); unix.listen()
flags = os.O_CREAT | os.O_EXCL
if libc.shmget(4242, 4096, 0o3600) < 0: sys.exit("shared memory: " + os.strerror(ctypes.get_errno()))
queue = libc.mq_open(b"/conformance", flags | os.O_RDWR, 0o600, None)
if queue < 0: sys.exit("message queue: " + os.strerror(ctypes.get_errno()))
os.close(os.open("/dev/shm/conformance", flags))
print(tcp.getsockname()[1], flush=True)
if os.fork(): os._exit(0)
os.setsid(); os.close(1); os.close(2); os.close(0)
import time; time.sleep(600)
"""
"""Takes a TCP port, an abstract socket, System V and POSIX shared memory and a POSIX message queue."""

ZOO = r"""
set -e; mkdir -p /tmp/zoo /srv/zoo; cd /tmp/zoo
printf 'content' > file; : > empty; head -c 300000 /dev/zero | tr '\0' x > large
mkdir -p deep/er/still; echo deep > deep/er/still/file; chmod 2751 deep/er; mkdir sticky; chmod 1777 sticky
for mode in 000 400 755 4711 2755; do echo $mode > mode-$mode; chmod $mode mode-$mode; done
ln -s file link; ln -s /nowhere dangling; ln -s . loop; ln file hard; mkdir other; ln file other/hard; mkfifo fifo
truncate -s 64M sparse; printf end >> sparse
touch -d '2001-02-03 04:05:06.123456789' file; touch -h -d '2002-03-04 05:06:07.987654321' link
echo odd > 'a name
with a line'; echo odd > "$(printf '\303\050')"; echo hidden > .hidden
mkdir closed; echo closed > closed/file; chmod 000 closed; touch -d '1999-12-31 23:59:59.5' deep/er sticky
echo srv > /srv/zoo/file; mv /srv/zoo /srv/moved; echo replaced > /etc/motd.new; mv /etc/motd.new /etc/motd
rm -f /etc/issue; chmod 2775 /srv; chmod 751 /
for each in /usr/local/share /usr/local/games; do
    (rm -rf $each; mkdir $each; echo own > $each/own) 2> /dev/null || :
done
"""
"""Makes files of every kind that an ordinary program makes, and removes files, some of them from the image."""

WRITE_ATTRIBUTES = """
import os
try: os.setxattr("/tmp/zoo/file", "user.conformance", b"kept")
except OSError: pass
"""
READ_ATTRIBUTES = (
    'import os; print([(name, os.getxattr("/tmp/zoo/file", name)) for name in os.listxattr("/tmp/zoo/file")])'
)

IN_ORDER = """
i=0; while :; do i=$((i+1)); echo $i > /tmp/first.new; mv /tmp/first.new /tmp/first
echo $i > /tmp/second.new; mv /tmp/second.new /tmp/second; done
"""
"""Counts up in two files: the number in `second` equals the number in `first` or is one less."""

SHARED_MEMORY = """
import ctypes, sys
sys.exit(ctypes.CDLL(None).shmget(4242, 4096, int(sys.argv[1], 8)) < 0)
"""
