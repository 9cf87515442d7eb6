/* Preloaded into the tool, this simulates an exploited fault: when the program ends, it tries calls that the tool never
 * makes, and writes a line for each try to the descriptor ESCAPE_FD: the call, and 0 or the error's number. The files
 * that it may harm are ESCAPE_SOURCE (a file of the checkpoint), ESCAPE_OTHER (a file that the command does not name)
 * and ESCAPE_LINKED (a file of the checkpoint by its name in the output; may be missing). */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int to;

static void told(const char *what, int failed)
{
    dprintf(to, "%s %d\n", what, failed ? errno : 0);
}

static void opened(const char *what, const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0600);
    told(what, fd < 0);
    if (fd >= 0)
        close(fd);
}

static void connected(void)
{
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&there, sizeof there) != 0 && errno == ECONNREFUSED)
        errno = 0; /* it went as far as the network */
    told("connect", errno != 0);
    if (fd >= 0)
        close(fd);
}

static void started(void)
{
    char program[] = "/bin/true", *words[] = {program, NULL};
    pid_t child;
    errno = posix_spawn(&child, words[0], NULL, NULL, words, environ);
    told("exec", errno != 0);
    if (errno == 0)
        waitpid(child, NULL, 0);
}

static void *in_a_thread(void *path)
{
    opened("write elsewhere, in a thread", path, O_WRONLY);
    return NULL;
}

/* With --link hard a file of the source has a name in the output. It must not be writable by that name. */
static void linked(const char *name, const char *source)
{
    char inside[4096];
    if (name == NULL)
        return;
    opened("write what is linked", name, O_WRONLY);
    const int folder = (int)(strrchr(name, '/') - name);
    snprintf(inside, sizeof inside, "%.*s/.tessera/new", folder, name);
    told("link source to where files are written", link(source, inside) != 0);
    snprintf(inside, sizeof inside, "%.*s/.tessera/moved", folder, name);
    told("move what is linked there", rename(name, inside) != 0);
}

__attribute__((destructor)) static void escape(void)
{
    const char *number = getenv("ESCAPE_FD"), *source = getenv("ESCAPE_SOURCE"), *other = getenv("ESCAPE_OTHER");
    char beside[4096];
    pthread_t thread;
    if (number == NULL || source == NULL || other == NULL)
        return;
    unsetenv("LD_PRELOAD");
    to = atoi(number);
    snprintf(beside, sizeof beside, "%s.new", other);
    errno = 0;
    connected();
    started();
    opened("read elsewhere", other, O_RDONLY);
    opened("write elsewhere", other, O_WRONLY);
    opened("make elsewhere", beside, O_WRONLY | O_CREAT | O_EXCL);
    told("link elsewhere", link(other, beside) != 0 && errno != EEXIST);
    told("symlink elsewhere", symlink("/", beside) != 0 && errno != EEXIST);
    told("chmod elsewhere", chmod(other, 0600) != 0);
    told("truncate elsewhere", truncate(other, 0) != 0);
    opened("write source", source, O_WRONLY);
    linked(getenv("ESCAPE_LINKED"), source);
    snprintf(beside, sizeof beside, "%s.new", source);
    opened("make in source", beside, O_WRONLY | O_CREAT | O_EXCL);
    told("rename in source", rename(source, beside) != 0);
    told("remove in source", unlink(access(beside, F_OK) == 0 ? beside : source) != 0);
    told("ptrace", ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0);
    told("unshare", syscall(SYS_unshare, 0) != 0);
    if (pthread_create(&thread, NULL, in_a_thread, (void *)other) == 0)
        pthread_join(thread, NULL);
    close(to);
}
