// Lets one file operation of a process tree fail. Preloaded (LD_PRELOAD) by tests/chaos/files/injection.py.
//
// PROCTOR_FAULT_PAGE names a file with the plan, mapped by every process: they count together.
// PROCTOR_FAULT_UNDER names the folder whose files count. PROCTOR_FAULT_TRACE gets a line for each
// counted operation.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// The order of injection.py's struct format.
typedef struct {
    int armed, count, target, action, value, kinds, fired;
} Plan;

enum { ONCE = 1, ONWARD = 2, HALF_WRITE = 3, KILL_GROUP = 4, SET_CLOCK = 5, PAUSE = 6 };
enum { CREATE = 1, WRITE = 2, NAME = 4, SYNC = 8, SIZE = 16, REMOVE = 32, MODE = 64, READ = 128 };
typedef enum { PASS, REFUSE, SHORTEN } Verdict;

static volatile Plan *plan;
static char folder[PATH_MAX];
static size_t folder_length;
static int trace = -1;

__attribute__((constructor)) static void begin(void) {
    const char *page = getenv("PROCTOR_FAULT_PAGE"), *under = getenv("PROCTOR_FAULT_UNDER");
    const char *lines = getenv("PROCTOR_FAULT_TRACE");
    if (!page || !under || !lines || strlen(under) >= sizeof folder) return;
    strcpy(folder, under);
    folder_length = strlen(folder);
    int file = syscall(SYS_openat, AT_FDCWD, page, O_RDWR | O_CLOEXEC);
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    int opened = syscall(SYS_openat, AT_FDCWD, lines, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (mapped == MAP_FAILED || opened < 0) return;
    // A high number: programs expect the lowest free ones.
    trace = fcntl(opened, F_DUPFD_CLOEXEC, 700);
    syscall(SYS_close, opened);
    plan = mapped;
}

static Verdict decide(int kind, const char *call, const char *path) {
    if (strncmp(path, folder, folder_length) || (path[folder_length] != '/' && path[folder_length]))
        return PASS;
    int number = __sync_add_and_fetch(&plan->count, 1);
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%d %s %s\n", number, call, path + folder_length);
    syscall(SYS_write, trace, line, (size_t)length < sizeof line ? (size_t)length : sizeof line);
    if (!plan->target || number < plan->target) return PASS;
    int action = plan->action, first = number == plan->target;
    if (first) plan->fired = 1;
    if (first && action == KILL_GROUP) kill(0, SIGKILL);
    if (first && action == PAUSE) raise(SIGSTOP);
    if (action == SET_CLOCK || action == PAUSE) return PASS;
    if (first && action == HALF_WRITE && kind == WRITE) return SHORTEN;
    return first || action == ONWARD || action == HALF_WRITE ? REFUSE : PASS;
}

static Verdict on_path(int kind, const char *call, int directory, const char *name) {
    if (!plan || !plan->armed || !(plan->kinds & kind) || !name) return PASS;
    int kept = errno;
    char path[PATH_MAX * 2], link[64];
    ssize_t length = 0;
    if (name[0] != '/') {
        if (directory == AT_FDCWD) strcpy(link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        length = syscall(SYS_readlinkat, AT_FDCWD, link, path, (size_t)PATH_MAX - 1);
        if (length < 0) length = 0;
        path[length++] = '/';
    }
    snprintf(path + length, sizeof path - length, "%s", name);
    Verdict verdict = decide(kind, call, path);
    errno = verdict == PASS ? kept : plan->value;
    return verdict;
}

static Verdict on_file(int kind, const char *call, int file) {
    if (!plan || !plan->armed || !(plan->kinds & kind)) return PASS;
    int kept = errno;
    char path[PATH_MAX], link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = kept;
    if (length < 0) return PASS;
    path[length] = 0;
    Verdict verdict = decide(kind, call, path);
    errno = verdict == PASS ? kept : plan->value;
    return verdict;
}

static int opens(const char *call, int directory, const char *name, int flags) {
    int writes = (flags & (O_CREAT | O_TRUNC)) || (flags & O_ACCMODE) != O_RDONLY;
    if (flags & (O_DIRECTORY | O_PATH)) return 0;
    return on_path(writes ? CREATE : READ, call, directory, name) != PASS;
}

#define MODE_OF(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }
#define OPEN(symbol) \
    int symbol(const char *name, int flags, ...) { \
        MODE_OF(flags) \
        if (opens("open", AT_FDCWD, name, flags)) return -1; \
        return syscall(SYS_openat, AT_FDCWD, name, flags, mode); \
    }
#define OPENAT(symbol) \
    int symbol(int directory, const char *name, int flags, ...) { \
        MODE_OF(flags) \
        if (opens("open", directory, name, flags)) return -1; \
        return syscall(SYS_openat, directory, name, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

// The next definition of a symbol, after ours.
#define NEXT(symbol) \
    static __typeof__(&symbol) next; \
    if (!next) next = dlsym(RTLD_NEXT, #symbol)

#define FOPEN(symbol) \
    FILE *symbol(const char *name, const char *mode) { \
        NEXT(symbol); \
        int reads = mode[0] == 'r' && !strchr(mode, '+'); \
        if (opens("open", AT_FDCWD, name, reads ? O_RDONLY : O_WRONLY | O_CREAT)) return NULL; \
        return next(name, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

// A wrapper of a call that answers -1: its symbol, type, parameters, arguments, and what is asked.
#define WRAP(type, symbol, parameters, arguments, question) \
    type symbol parameters { \
        NEXT(symbol); \
        if ((question) != PASS) return -1; \
        return next arguments; \
    }

ssize_t write(int file, const void *bytes, size_t size) {
    NEXT(write);
    Verdict verdict = on_file(WRITE, "write", file);
    if (verdict == REFUSE) return -1;
    return next(file, bytes, verdict == SHORTEN ? (size + 1) / 2 : size);
}
size_t fwrite(const void *bytes, size_t size, size_t count, FILE *stream) {
    NEXT(fwrite);
    return on_file(WRITE, "write", fileno(stream)) == PASS ? next(bytes, size, count, stream) : 0;
}
WRAP(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count), on_file(WRITE, "write", file))
WRAP(ssize_t, pwrite, (int file, const void *bytes, size_t size, off_t at), (file, bytes, size, at), on_file(WRITE, "write", file))
WRAP(ssize_t, pwrite64, (int file, const void *bytes, size_t size, off64_t at), (file, bytes, size, at), on_file(WRITE, "write", file))
WRAP(ssize_t, sendfile, (int to, int from, off_t *at, size_t size), (to, from, at, size), on_file(WRITE, "write", to))
WRAP(ssize_t, sendfile64, (int to, int from, off64_t *at, size_t size), (to, from, at, size), on_file(WRITE, "write", to))
WRAP(ssize_t, copy_file_range, (int from, off64_t *start, int to, off64_t *at, size_t size, unsigned flags), (from, start, to, at, size, flags), on_file(WRITE, "write", to))
WRAP(ssize_t, read, (int file, void *bytes, size_t size), (file, bytes, size), on_file(READ, "read", file))
WRAP(ssize_t, pread64, (int file, void *bytes, size_t size, off64_t at), (file, bytes, size, at), on_file(READ, "read", file))
WRAP(int, rename, (const char *from, const char *to), (from, to), on_path(NAME, "rename", AT_FDCWD, to))
WRAP(int, renameat, (int in, const char *from, int into, const char *to), (in, from, into, to), on_path(NAME, "rename", into, to))
WRAP(int, renameat2, (int in, const char *from, int into, const char *to, unsigned flags), (in, from, into, to, flags), on_path(NAME, "rename", into, to))
WRAP(int, link, (const char *from, const char *to), (from, to), on_path(NAME, "link", AT_FDCWD, to))
WRAP(int, linkat, (int in, const char *from, int into, const char *to, int flags), (in, from, into, to, flags), on_path(NAME, "link", into, to))
WRAP(int, symlink, (const char *to, const char *name), (to, name), on_path(NAME, "symlink", AT_FDCWD, name))
WRAP(int, symlinkat, (const char *to, int in, const char *name), (to, in, name), on_path(NAME, "symlink", in, name))
WRAP(int, mkdir, (const char *name, mode_t mode), (name, mode), on_path(NAME, "mkdir", AT_FDCWD, name))
WRAP(int, mkdirat, (int in, const char *name, mode_t mode), (in, name, mode), on_path(NAME, "mkdir", in, name))
WRAP(int, fsync, (int file), (file), on_file(SYNC, "fsync", file))
WRAP(int, fdatasync, (int file), (file), on_file(SYNC, "fsync", file))
WRAP(int, ftruncate, (int file, off_t size), (file, size), on_file(SIZE, "truncate", file))
WRAP(int, ftruncate64, (int file, off64_t size), (file, size), on_file(SIZE, "truncate", file))
WRAP(int, truncate, (const char *name, off_t size), (name, size), on_path(SIZE, "truncate", AT_FDCWD, name))
WRAP(int, unlink, (const char *name), (name), on_path(REMOVE, "unlink", AT_FDCWD, name))
WRAP(int, unlinkat, (int in, const char *name, int flags), (in, name, flags), on_path(REMOVE, "unlink", in, name))
WRAP(int, rmdir, (const char *name), (name), on_path(REMOVE, "unlink", AT_FDCWD, name))
WRAP(int, chmod, (const char *name, mode_t mode), (name, mode), on_path(MODE, "chmod", AT_FDCWD, name))
WRAP(int, fchmod, (int file, mode_t mode), (file, mode), on_file(MODE, "chmod", file))

// These answer with the error itself.
int posix_fallocate(int file, off_t at, off_t size) {
    NEXT(posix_fallocate);
    return on_file(SIZE, "truncate", file) == PASS ? next(file, at, size) : plan->value;
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
    NEXT(posix_fallocate64);
    return on_file(SIZE, "truncate", file) == PASS ? next(file, at, size) : plan->value;
}

// The system clock; it has jumped by plan->value seconds once the operation has come.
static int shift(void) {
    return plan && plan->armed && plan->fired && plan->action == SET_CLOCK ? plan->value : 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += shift();
    return code;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int code = syscall(SYS_gettimeofday, now, zone);
    now->tv_sec += shift();
    return code;
}
time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}

// A full disk or quota of a network file system is often reported by close; the number is free then.
int close(int file) {
    NEXT(close);
    int flags = plan && plan->armed ? fcntl(file, F_GETFL) : -1;
    int writes = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
    Verdict verdict = writes ? on_file(SYNC, "close", file) : PASS;
    int kept = errno, code = next(file);
    if (verdict == PASS) return code;
    errno = kept;
    return -1;
}
