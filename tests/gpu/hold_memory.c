/* hold_memory GPU MIB: allocates all memory of a GPU but MIB, prints "held", and keeps it until its input ends. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    const size_t piece = 16 << 20, left = argc == 3 ? strtoul(argv[2], NULL, 10) << 20 : 0;
    size_t free_bytes = 0, all = 0;
    void *memory;
    if (argc != 3 || cudaSetDevice(atoi(argv[1])) != cudaSuccess)
        return 5;
    while (cudaMemGetInfo(&free_bytes, &all) == cudaSuccess && free_bytes > left + piece &&
           cudaMalloc(&memory, free_bytes - left > 64 * piece ? 64 * piece : piece) == cudaSuccess)
        ;
    printf("held\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
