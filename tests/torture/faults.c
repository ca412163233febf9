// Preloaded into a process and all that it starts: makes the n-th call of a kind fail, do half of its work, or be the
// last. Only calls about watched files count: those below a folder, and what gemmill reads of its own that is no code.
//
// What is to happen lies in a file that all processes of one try map (TORTURE_PLAN; plan.py writes it), so that "the
// n-th" is counted over all of them.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// The order is that of plan.py.
enum kind { OPEN, READ, WRITE, CLOSE, STAT, LIST, RENAME, UNLINK, MKDIR, SYNC, MODE, LOCK, MAP, FORK, PIPE, THREAD,
            KINDS };

// What else can happen than an error number.
enum { HALF = -1, KILL = -2, HALF_KILL = -3, TERM = -4 };

// plan.py has the same layout.
struct plan {
    int32_t kind;    // of enum kind; -1: nothing happens
    int32_t how;     // an error number, or one of the above
    int32_t sticky;  // whether it happens at all later calls of the kind, too
    _Atomic int32_t fired;
    int64_t at;       // the first is 1
    int64_t ahead_s;  // how far the clock is ahead
    _Atomic int64_t counts[KINDS];
    char within[512];  // a folder; files below it are watched
    char data[512];    // another, of which code is not
};

static struct plan* plan;
enum { FILES = 4096 };
static unsigned char watched[FILES];

// A function of the C library.
#define REAL(name) ({ static __typeof__(name)* real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })

int torture_plan(const char* path) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return -1;
    void* found = mmap(NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED) return -1;
    memset(watched, 0, sizeof watched);
    watched[1] = 1;  // stdout; an error on stderr could not be told
    plan = found;
    return 0;
}

__attribute__((constructor)) static void start(void) {
    const char* path = getenv("TORTURE_PLAN");
    if (path) torture_plan(path);
}

static int below(const char* path, const char* folder) {
    size_t size = strlen(folder);
    return size && !strncmp(path, folder, size) && (path[size] == '/' || !path[size]);
}

static int ends(const char* path, const char* end) {
    size_t size = strlen(path), of = strlen(end);
    return size >= of && !strcmp(path + size - of, end);
}

static int of_interest(int folder, const char* path) {
    if (!plan || !path) return 0;
    if (path[0] != '/') {
        if (folder >= 0) return folder < FILES && watched[folder];
        char here[4096];
        return getcwd(here, sizeof here) && below(here, plan->within);
    }
    if (below(path, plan->within)) return 1;
    return below(path, plan->data) && (ends(path, ".yaml") || ends(path, ".json") || ends(path, ".cuh")
                                       || ends(path, ".h") || ends(path, ".parquet") || ends(path, ".npz"));
}

static int file_of_interest(int file) { return plan && file >= 0 && file < FILES && watched[file]; }

// What is to happen at this call: 0, or the plan's `how`.
static int due(enum kind kind) {
    int64_t number = atomic_fetch_add(&plan->counts[kind], 1) + 1;
    if (plan->kind != (int32_t)kind || number < plan->at || (number > plan->at && !plan->sticky)) return 0;
    atomic_fetch_add(&plan->fired, 1);
    if (plan->how == KILL) kill(getpid(), SIGKILL);
    if (plan->how == TERM) {
        kill(getpid(), SIGTERM);
        return 0;
    }
    return plan->how;
}

// Fail a call that is of interest, when it is due.
#define FAIL(interesting, kind, otherwise)           \
    do {                                             \
        if (plan && (interesting)) {                 \
            int how = due(kind);                     \
            if (how > 0) {                           \
                errno = how;                         \
                return otherwise;                    \
            }                                        \
        }                                            \
    } while (0)

static int seen(int file, int interesting) {
    if (file >= 0 && file < FILES) watched[file] = interesting;
    return file;
}

#define MODE_OF(flags) \
    mode_t mode = 0;   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

#define OPENS(name)                                                      \
    int name(const char* path, int flags, ...) {                         \
        MODE_OF(flags)                                                   \
        int interesting = of_interest(AT_FDCWD, path);                   \
        FAIL(interesting, OPEN, -1);                                     \
        return seen(REAL(name)(path, flags, mode), interesting);         \
    }
OPENS(open)
OPENS(open64)
#define OPENS_AT(name)                                                   \
    int name(int folder, const char* path, int flags, ...) {             \
        MODE_OF(flags)                                                   \
        int interesting = of_interest(folder, path);                     \
        FAIL(interesting, OPEN, -1);                                     \
        return seen(REAL(name)(folder, path, flags, mode), interesting); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)
#define OPENS_STREAM(name)                                               \
    FILE* name(const char* path, const char* mode) {                     \
        int interesting = of_interest(AT_FDCWD, path);                   \
        FAIL(interesting, OPEN, NULL);                                   \
        FILE* file = REAL(name)(path, mode);                             \
        if (file) seen(fileno(file), interesting);                       \
        return file;                                                     \
    }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

int close(int file) {
    int interesting = file_of_interest(file);
    seen(file, file == 1 && interesting);
    int done = REAL(close)(file);
    FAIL(interesting, CLOSE, -1);  // the system has closed it all the same
    return done;
}
int dup(int file) { return seen(REAL(dup)(file), file_of_interest(file)); }
int dup2(int file, int to) {
    int interesting = file_of_interest(file);
    return seen(REAL(dup2)(file, to), interesting);
}
int dup3(int file, int to, int flags) {
    int interesting = file_of_interest(file);
    return seen(REAL(dup3)(file, to, flags), interesting);
}

static size_t part(size_t size) { return size > 1 ? size / 2 : size; }

ssize_t read(int file, void* to, size_t size) {
    if (file_of_interest(file)) {
        int how = due(READ);
        if (how > 0) return errno = how, -1;
        if (how == HALF) size = part(size);
    }
    return REAL(read)(file, to, size);
}
ssize_t write(int file, const void* from, size_t size) {
    if (file_of_interest(file)) {
        int how = due(WRITE);
        if (how > 0) return errno = how, -1;
        if (how == HALF) size = part(size);
        if (how == HALF_KILL) {
            if (REAL(write)(file, from, part(size)) >= 0) kill(getpid(), SIGKILL);
        }
    }
    return REAL(write)(file, from, size);
}

#define ON_PATH(result, name, kind, otherwise, parameters, arguments) \
    result name parameters {                                         \
        FAIL(of_interest(AT_FDCWD, path), kind, otherwise);          \
        return REAL(name) arguments;                                 \
    }
#define ON_PLACE(result, name, kind, otherwise, parameters, arguments) \
    result name parameters {                                          \
        FAIL(of_interest(folder, path), kind, otherwise);             \
        return REAL(name) arguments;                                  \
    }
#define ON_FILE(result, name, kind, parameters, arguments) \
    result name parameters {                              \
        FAIL(file_of_interest(file), kind, -1);           \
        return REAL(name) arguments;                      \
    }
ON_PATH(int, stat, STAT, -1, (const char* path, struct stat* to), (path, to))
ON_PATH(int, stat64, STAT, -1, (const char* path, struct stat64* to), (path, to))
ON_PATH(int, lstat, STAT, -1, (const char* path, struct stat* to), (path, to))
ON_PATH(int, lstat64, STAT, -1, (const char* path, struct stat64* to), (path, to))
ON_FILE(int, fstat, STAT, (int file, struct stat* to), (file, to))
ON_FILE(int, fstat64, STAT, (int file, struct stat64* to), (file, to))
ON_PLACE(int, fstatat, STAT, -1, (int folder, const char* path, struct stat* to, int flags), (folder, path, to, flags))
ON_PLACE(int, fstatat64, STAT, -1, (int folder, const char* path, struct stat64* to, int flags),
         (folder, path, to, flags))
ON_FILE(int, ftruncate, WRITE, (int file, off_t size), (file, size))
ON_FILE(int, ftruncate64, WRITE, (int file, off64_t size), (file, size))
ON_FILE(int, fsync, SYNC, (int file), (file))
ON_FILE(int, fdatasync, SYNC, (int file), (file))
ON_FILE(int, fchmod, MODE, (int file, mode_t mode), (file, mode))
ON_FILE(int, futimens, MODE, (int file, const struct timespec times[2]), (file, times))
ON_PATH(int, chmod, MODE, -1, (const char* path, mode_t mode), (path, mode))
ON_PLACE(int, utimensat, MODE, -1, (int folder, const char* path, const struct timespec times[2], int flags),
         (folder, path, times, flags))
ON_FILE(int, flock, LOCK, (int file, int how), (file, how))
ON_PATH(int, unlink, UNLINK, -1, (const char* path), (path))
ON_PLACE(int, unlinkat, UNLINK, -1, (int folder, const char* path, int flags), (folder, path, flags))
ON_PATH(int, rmdir, UNLINK, -1, (const char* path), (path))
ON_PATH(int, mkdir, MKDIR, -1, (const char* path, mode_t mode), (path, mode))
ON_PLACE(int, mkdirat, MKDIR, -1, (int folder, const char* path, mode_t mode), (folder, path, mode))
ON_PATH(int, rename, RENAME, -1, (const char* path, const char* to), (path, to))
ON_PLACE(int, renameat, RENAME, -1, (int folder, const char* path, int other, const char* to),
         (folder, path, other, to))
ON_PATH(int, link, RENAME, -1, (const char* path, const char* to), (path, to))
ON_PLACE(int, linkat, RENAME, -1, (int folder, const char* path, int other, const char* to, int flags),
         (folder, path, other, to, flags))

DIR* opendir(const char* path) {
    int interesting = of_interest(AT_FDCWD, path);
    FAIL(interesting, LIST, NULL);
    DIR* folder = REAL(opendir)(path);
    if (folder) seen(dirfd(folder), interesting);
    return folder;
}
int closedir(DIR* folder) {
    seen(dirfd(folder), 0);
    return REAL(closedir)(folder);
}
DIR* fdopendir(int file) {
    FAIL(file_of_interest(file), LIST, NULL);
    return REAL(fdopendir)(file);
}
// NULL with an error number is an error; NULL alone would be the end.
#define LISTS(name, type)                                          \
    struct type* name(DIR* folder) {                               \
        FAIL(file_of_interest(dirfd(folder)), LIST, NULL);         \
        return REAL(name)(folder);                                 \
    }
LISTS(readdir, dirent)
LISTS(readdir64, dirent64)

#define MAPS(name, number)                                                                      \
    void* name(void* place, size_t size, int access, int flags, int file, number from) {        \
        FAIL(!(flags & MAP_ANONYMOUS) && file_of_interest(file), MAP, MAP_FAILED);              \
        return REAL(name)(place, size, access, flags, file, from);                              \
    }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

pid_t fork(void) {
    FAIL(1, FORK, -1);
    return REAL(fork)();
}
// Nothing may stand between a caller and its vfork; a fork does the same, if slower.
pid_t vfork(void) { return fork(); }
int pipe(int ends[2]) {
    FAIL(1, PIPE, -1);
    return REAL(pipe)(ends);
}
int pipe2(int ends[2], int flags) {
    FAIL(1, PIPE, -1);
    return REAL(pipe2)(ends, flags);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*), void* with) {
    if (plan) {
        int error = due(THREAD);
        if (error > 0) return error;
    }
    return REAL(pthread_create)(thread, how, run, with);
}

time_t time(time_t* to) {
    time_t now = REAL(time)(NULL) + (plan ? plan->ahead_s : 0);
    if (to) *to = now;
    return now;
}
int clock_gettime(clockid_t clock, struct timespec* to) {
    int done = REAL(clock_gettime)(clock, to);
    if (!done && plan && clock == CLOCK_REALTIME) to->tv_sec += plan->ahead_s;
    return done;
}
