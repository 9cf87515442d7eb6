/* Tokenizes text, or the texts of JSON lines, with the Python package `tokenizers` in a separate process.
 *
 * The package reads tokenizer.json as all consumers do. The tokens come from one pipe, the reason of a failure from
 * another. */
#include "verify/forward/tokens/token_file.h"

#include "common/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_ANSWER = 1 << 26 };

/* A failure prints a sentence to stderr. */
static const char kScript[] =
    "import json, sys, struct\n"
    "try:\n"
    "    import tokenizers\n"
    "except ImportError:\n"
    "    raise SystemExit('the Python package tokenizers is not installed (pip install tokenizers)')\n"
    "def documents(path):\n"
    "    with open(path, encoding='utf-8') as file:\n"
    "        if not path.endswith('.jsonl'):\n"
    "            return [file.read()]\n"
    "        rows = [(n, json.loads(line)) for n, line in enumerate(file, 1) if line.strip()]\n"
    "    for n, row in rows:\n"
    "        if not isinstance(row, dict) or not isinstance(row.get('text'), str):\n"
    "            raise ValueError(f'line {n} is no object with a string \"text\"')\n"
    "    return [row['text'] for _, row in rows]\n"
    "try:\n"
    "    tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])\n"
    "    ids = [i for e in tokenizer.encode_batch(documents(sys.argv[2])) for i in e.ids]\n"
    "except Exception as error:\n"
    "    raise SystemExit(str(error).splitlines()[0] if str(error) else repr(error))\n"
    "sys.stdout.buffer.write(struct.pack(f'<{len(ids)}i', *ids))\n";

typedef struct answer {
    unsigned char *bytes;
    size_t size, capacity;
} answer;

/* Reads available bytes. Returns false at the end, or if the buffer is full. */
static bool read_some(int from, answer *a)
{
    if (a->size == a->capacity) {
        const size_t more = a->capacity > 0 ? 2 * a->capacity : 1 << 16;
        unsigned char *const bytes = more > MAX_ANSWER ? NULL : realloc(a->bytes, more);
        if (bytes == NULL)
            return false;
        a->bytes = bytes;
        a->capacity = more;
    }
    const ssize_t n = read(from, a->bytes + a->size, a->capacity - a->size);
    a->size += n > 0 ? (size_t)n : 0;
    return n > 0 || (n < 0 && errno == EINTR);
}

/* Reads both pipes at once, so that neither fills up while the other is read. */
static void read_both(const int from[2], answer to[2])
{
    struct pollfd waits[2] = {{from[0], POLLIN, 0}, {from[1], POLLIN, 0}};
    while (waits[0].fd >= 0 || waits[1].fd >= 0) {
        if (poll(waits, 2, -1) < 0 && errno != EINTR)
            return;
        for (size_t i = 0; i < 2; i++) {
            if (waits[i].fd >= 0 && waits[i].revents != 0 && !read_some(from[i], &to[i]))
                waits[i].fd = -1;
        }
    }
}

/* Starts python3 with both outputs in pipes. Returns an errno. `from` gets the reading ends. */
static int start(const char *python, const char *const *words, int from[2], pid_t *child)
{
    int out[2] = {-1, -1}, errors[2] = {-1, -1}, code = 0;
    posix_spawn_file_actions_t actions;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0)
        code = errno;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, errors[1], 2);
    union {
        const char *const *words;
        char *const *argv;
    } const arguments = {words}; /* posix_spawnp does not write to them */
    if (code == 0)
        code = posix_spawnp(child, python, &actions, NULL, arguments.argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    for (size_t i = 0; i < 2; i++) {
        const int *const ends = i == 0 ? out : errors;
        from[i] = ends[0];
        if (ends[1] >= 0)
            close(ends[1]);
        if (code != 0 && ends[0] >= 0)
            close(ends[0]);
    }
    return code;
}

tsr_status tsr_tokenize(const char *path, const char *model, unsigned char **ids, size_t *bytes, tsr_err *err)
{
    const char *const named = getenv("TESSERA_PYTHON"), *const python = named == NULL ? "python3" : named;
    char tokenizer[4096];
    answer answers[2] = {{0}};
    int from[2], state = 0;
    pid_t child;
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", model);
    if (access(tokenizer, R_OK) != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: it is text, but %s cannot be read; give token ids instead, one sequence per line", path,
                        tokenizer);
    const char *const words[] = {python, "-c", kScript, tokenizer, path, NULL};
    const int code = start(python, words, from, &child);
    if (code != 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: it is text, but %s cannot be run to tokenize it: %s", path, python,
                        strerror(code));
    read_both(from, answers);
    close(from[0]);
    close(from[1]);
    while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    const bool fine = WIFEXITED(state) && WEXITSTATUS(state) == 0;
    answers[1].size -= answers[1].size > 0 && answers[1].bytes[answers[1].size - 1] == '\n';
    const int length = (int)tsr_min_u64(answers[1].size, 300);
    *ids = answers[0].bytes;
    *bytes = answers[0].size;
    tsr_status status = TSR_OK;
    if (!fine || *ids == NULL)
        status = tsr_fail(err, TSR_E_UNSUPPORTED, "%s: it is text, but %s could not tokenize it with %s: %.*s", path,
                          python, tokenizer, length, answers[1].bytes == NULL ? "" : (const char *)answers[1].bytes);
    free(answers[1].bytes);
    if (status != TSR_OK) {
        free(*ids);
        *ids = NULL;
    }
    return status;
}
