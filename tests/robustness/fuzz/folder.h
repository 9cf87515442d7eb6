/* A temporary folder for inputs that a fuzz target reads by name. It is removed when the process ends. */
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[PATH_MAX - 64];
static const char *const *folder_names; /* the last one is NULL */

static const char *place(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline int create(const char *name)
{
    const int fd = open(place(name), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0)
        abort();
    return fd;
}

static inline void put(int fd, const void *data, size_t size)
{
    if (size > 0 && write(fd, data, size) != (ssize_t)size)
        abort();
}

static inline void put_file(const char *name, const void *data, size_t size)
{
    const int fd = create(name);
    put(fd, data, size);
    close(fd);
}

static void remove_folder(void)
{
    for (size_t i = 0; folder_names[i] != NULL; i++)
        unlink(place(folder_names[i]));
    rmdir(folder);
}

/* `names`: all that will ever be in it. */
static inline void make_folder(const char *const *names)
{
    const char *const parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/tessera-fuzz.XXXXXX", parent == NULL ? "/tmp" : parent);
    folder_names = names;
    if (mkdtemp(folder) == NULL || atexit(remove_folder) != 0)
        abort();
}
