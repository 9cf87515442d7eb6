/* Preloaded into a program: starts it once, stops before main, and forks it for each requested run.
 *
 * This saves the time of the loader and of the sanitizers' tables, which is often ten times that of a run. No code of
 * the program has run before the fork. Each copy has its own arguments, folder, stdout and stderr, and ends as a
 * process of its own.
 *
 * FORKED_FD is a socket. A request is a struct request with two descriptors for stdout and stderr, followed by the
 * folder and the arguments, each with its NUL. The answers are the process id, and the status when the process has
 * ended. The server ends with the socket. tests/common/forked.py is the client. */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct request {
    uint32_t bytes, arguments, cpu; /* bytes that follow, arguments in them, limit in seconds of CPU (SIGXCPU) or 0 */
};

typedef int main_function(int argc, char **argv, char **envp);
typedef int start_function(main_function *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                           void (*rtld_fini)(void), void *stack_end);

static main_function *real_main;

static int receive(int server, void *at, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = read(server, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        at = (char *)at + n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int receive_request(int server, struct request *request, int streams[2])
{
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec place = {request, sizeof *request};
    struct msghdr message = {
        .msg_iov = &place, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
    ssize_t n;
    do
        n = recvmsg(server, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    if (n != sizeof *request || with == NULL || with->cmsg_len != CMSG_LEN(2 * sizeof(int)))
        return -1;
    memcpy(streams, CMSG_DATA(with), 2 * sizeof(int));
    return 0;
}

static int run(const struct request *request, char *text, char **argv, char **envp)
{
    for (uint32_t i = 0; i < request->arguments; i++)
        argv[i] = i == 0 ? text + strlen(text) + 1 : argv[i - 1] + strlen(argv[i - 1]) + 1;
    argv[request->arguments] = NULL;
    struct rlimit limit = {request->cpu, request->cpu + 1};
    if (chdir(text) != 0 || (request->cpu > 0 && setrlimit(RLIMIT_CPU, &limit) != 0))
        _exit(126);
    return real_main((int)request->arguments, argv, envp);
}

/* Replaces main. The data of a run is in its own pages: the program's allocator, whose leaks are checked, does not know
 * it. */
static int serve(int argc, char **argv, char **envp)
{
    const char *number = getenv("FORKED_FD");
    if (number == NULL)
        return real_main(argc, argv, envp);
    int server = atoi(number);
    unsetenv("FORKED_FD");
    unsetenv("LD_PRELOAD");
    int32_t told = getpid();
    while (write(server, &told, sizeof told) == sizeof told) {
        struct request request;
        int streams[2], status = 0;
        if (receive_request(server, &request, streams) != 0)
            break;
        size_t begin = (request.bytes + 63) / 64 * 64, all = begin + (request.arguments + 1) * sizeof(char *);
        char *text = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (text == MAP_FAILED || receive(server, text, request.bytes) != 0)
            break;
        pid_t child = fork();
        if (child == 0) {
            close(server);
            if (dup2(streams[0], 1) != 1 || dup2(streams[1], 2) != 2)
                _exit(126);
            close(streams[0]);
            close(streams[1]);
            return run(&request, text, (char **)(void *)(text + begin), envp);
        }
        close(streams[0]);
        close(streams[1]);
        munmap(text, all);
        told = child;
        if (child < 0 || write(server, &told, sizeof told) != sizeof told)
            break;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        told = status;
    }
    _exit(0);
}

int __libc_start_main(main_function *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(main_function *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    start_function *start;
    *(void **)&start = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = main;
    return start(serve, argc, argv, init, fini, rtld_fini, stack_end);
}
