"""Lists the failures of each kind of system call, and chooses the calls of a run that fail."""

import collections
import errno

# A call that is interrupted has to be made again, and what is short has to be completed: then the run ends as if nothing had been.
# close is no such call: on Linux the file is closed although it was interrupted.
READS, WRITES = ["EIO", "EINTR", "short", "zero", "EAGAIN", "ENOMEM"], ["EIO", "ENOSPC", "EDQUOT", "EINTR", "short", "zero", "EFBIG", "EROFS"]
LOOKS = ["EIO", "EACCES", "ENOMEM", "ELOOP"]
NAMES = ["EIO", "ENOSPC", "EACCES", "EROFS", "EDQUOT", "EPERM"]
ACTIONS = {
    "open": ["EIO", "EACCES", "EMFILE", "ENFILE", "EINTR", "ENOMEM"],
    "create": ["EIO", "ENOSPC", "EROFS", "EACCES", "EDQUOT", "EMFILE", "EINTR", "ENOMEM"],
    "openat": ["EIO", "EACCES", "EMFILE", "EINTR", "ENOMEM"],
    "opendir": ["EIO", "EACCES", "EMFILE", "ENOMEM"],
    "readdir": ["EIO", "ENOMEM", "EBADF"],
    "closedir": ["EIO"],
    "read": ["EIO", "EINTR", "short", "zero"],
    "pread": READS[:4],
    "preadv2": ["EIO", "EAGAIN", "EOPNOTSUPP", "EINTR"],
    "write": WRITES[:5],
    "pwrite": WRITES,
    "fsync": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "EROFS"],
    "fdatasync": ["EIO", "ENOSPC", "EDQUOT", "EINTR"],
    "rename": NAMES,
    "unlink": ["EIO", "EACCES", "EROFS", "EPERM"],
    "unlinkat": ["EIO", "EACCES", "EROFS", "EPERM"],
    "mkdir": NAMES,
    "linkat": NAMES + ["EXDEV", "EMLINK"],
    "clone": ["EOPNOTSUPP", "EXDEV", "EINVAL", "EPERM", "EINTR", "ENOSPC", "EIO"],
    "ftruncate": ["EIO", "EINTR", "EFBIG", "EPERM", "ENOSPC"],
    "fallocate": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "EOPNOTSUPP", "EFBIG"],
    "stat": LOOKS,
    "lstat": LOOKS,
    "fstat": LOOKS[:3],
    "statx": ["EIO", "EACCES", "ENOSYS"],
    "statvfs": ["EIO", "EACCES", "ENOSYS", "EINTR"],
    "fstatfs": ["EIO", "ENOSYS", "EINTR"],
    "access": LOOKS,
    "realpath": LOOKS,
    "readlink": LOOKS[:3],
    "getcwd": ["EACCES", "ENOENT", "ENOMEM"],
    "flock": ["EIO", "ENOLCK", "EINTR", "EWOULDBLOCK"],
    "close": ["EIO", "EINTR", "ENOSPC", "EDQUOT"],
    "dup": ["EMFILE"],
    "fcntl": ["EMFILE"],
    "pipe": ["EMFILE", "ENFILE"],
    "lseek": ["EIO", "ESPIPE"],
    "clock": ["short"],
    "madvise": ["ENOMEM", "EINVAL"],
    "fadvise": ["EIO", "ENOSYS"],
    "sync_range": ["EIO", "ENOSPC"],
    "rlimit": ["EPERM"],
    "affinity": ["EPERM", "ENOSYS"],
    "thread": ["EAGAIN"],
    "lock": ["ENOMEM", "EAGAIN"],
    "poll": ["EINTR", "ENOMEM"],
    "semaphore": ["EINTR"],
    "spawn": ["EAGAIN", "ENOMEM"],
    "malloc": ["ENOMEM"],
    "ring": ["EPERM", "ENOSYS", "ENOMEM", "EMFILE"],
    "ring_register": ["ENOMEM", "EPERM"],
    "ring_submit": ["EAGAIN", "EINTR", "EBUSY", "ENOMEM"],
    "ring_wait": ["EINTR", "EAGAIN", "EBUSY", "EIO"],
    "ring_read": ["EIO", "EINTR", "EAGAIN", "short", "zero", "EINVAL", "EOPNOTSUPP"],
    "ring_write": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "EAGAIN", "short", "zero", "EINVAL"],
}
# Those that may also fail from one call on for good: a disk that stays full or gone, memory that is all taken.
FOR_GOOD = {"create": ["ENOSPC", "EROFS"], "open": ["EMFILE"], "pread": ["EIO"], "pwrite": ["ENOSPC", "EIO", "EDQUOT"], "fsync": ["EIO"], "fdatasync": ["EIO"],
            "rename": ["EROFS"], "unlink": ["EROFS"], "mkdir": ["ENOSPC"], "thread": ["EAGAIN"], "malloc": ["ENOMEM"], "close": ["EIO"],
            "ring_read": ["EIO", "short", "EAGAIN"], "ring_write": ["ENOSPC", "short", "EAGAIN"], "fallocate": ["EOPNOTSUPP"], "ring": ["EPERM"],
            "access": ["EACCES"], "stat": ["EACCES"]}
RETRIED = {"open", "create", "openat", "read", "pread", "write", "pwrite", "fsync", "fdatasync", "ftruncate", "fallocate", "flock", "statvfs",
           "fstatfs", "clone", "poll", "semaphore", "ring_submit", "ring_wait", "ring_read", "ring_write"}
# Calls that only advise or report: no result depends on them. A close follows the fsync that reported all errors.
ADVICE = {"madvise", "fadvise", "sync_range", "rlimit", "affinity", "clock", "close", "closedir", "ring", "ring_register"}
# Calls with a fallback if the system lacks them.
INSTEAD = {"fallocate": ("EOPNOTSUPP",), "preadv2": ("EAGAIN", "EOPNOTSUPP"), "statx": ("ENOSYS",)}


def actions_of(kind):
    """Returns (action, true if it applies to all later calls) of the actions for a call of this kind."""
    return [(action, False) for action in ACTIONS[kind]] + [(action, True) for action in FOR_GOOD.get(kind, [])]


def code_of(action):
    """Returns the errno of an action; 0 if it has none."""
    return getattr(errno, action, 0)


def plan(kind, number, action, for_good, text=""):
    """Writes the plan for the shim. With `text`, only calls with paths that contain it count."""
    return f"{kind} {number}{'+' if for_good else ' '} {code_of(action) or action}{' ' if text else ''}{text}\n"


def must_succeed(kind, action, for_good):
    """Returns True if a run with this fault must end as if there were none."""
    return (action == "short" or kind in ADVICE or action in INSTEAD.get(kind, ()) or
            (kind in RETRIED and not for_good and (action == "EINTR" or (action == "EAGAIN" and kind.startswith("ring")))))


# Faults that once ended wrongly, each struck in every run: the N-th call of a kind on a path with `text`. `code`: None for that of the
# undisturbed run. `words`: what is said.
Pin = collections.namedtuple("Pin", "case kind number action text code words for_good", defaults=[False])
PINNED = [
    Pin("batch", "realpath", 3, "EACCES", "/src", 4, ["job 'fp8'", "src: cannot access it: Permission denied"]),
    Pin("batch", "realpath", 1, "EIO", "/out/fp8", 4, ["job 'fp8'", "out/fp8: cannot access it: Input/output error"]),
    Pin("batch, results of each", "realpath", 6, "ENOMEM", "/src", 4, ["cannot access it: Cannot allocate memory"]),
    Pin("finish", "fstat", 1, "EACCES", "2.blocks", 4, ["2.blocks: cannot access it: Permission denied"]),
    Pin("finish", "open", 1, "EMFILE", "2.blocks", 4, ["2.blocks: cannot open: Too many open files"]),
    Pin("quantize, complete already", "stat", 1, "EIO", "0.blocks", 4, ["0.blocks: cannot access it: Input/output error"]),
    Pin("inspect FP8:lm_head.weight", "access", 2, "EACCES", "fp8", 4, ["fp8: cannot access it: Permission denied"]),
    Pin("a shard", "stat", 1, "EIO", ".tessera/journal", 4, ["journal", "cannot access it: Input/output error"]),
]


class Choice:
    """Chooses the faults of a case. The least used ones come first. Deterministic for one seed."""

    def __init__(self, random):
        self.random, self.used = random, {}

    def _least(self, options):
        least = min(self.used.get(option[:2], 0) for option in options)
        chosen = self.random.choice([option for option in options if self.used.get(option[:2], 0) == least])
        self.used[chosen[:2]] = self.used.get(chosen[:2], 0) + 1
        return chosen

    def sample(self, counts, faults):
        """Chooses faults for a run with these calls: (kind, number, action, permanent)."""
        left = [(kind, action, for_good) for kind in counts for action, for_good in actions_of(kind)]
        for _ in range(min(faults, len(left))):
            kind, action, for_good = chosen = self._least(left)
            left.remove(chosen)
            yield kind, self.random.randint(1, counts[kind]), action, for_good

    def every(self, counts, most):
        """Yields each call of each kind with alternating actions, at most so many of one kind, evenly distributed (0: no
        limit)."""
        for kind, count in counts.items():
            step = -(-count // most) if most else 1
            for number in range(1 + self.random.randrange(step), count + 1, step):
                _, action, for_good = self._least([(kind, action, for_good) for action, for_good in actions_of(kind)])
                yield kind, number, action, for_good
