/* Owns how test_races.cu repeats a launch and compares its results, alone and behind a slow producer. Included once. */
#pragma once

#include <functional>
#include <string.h>
#include <string>

#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/verdicts.cuh"

enum { kBuffers = 8, kSynchronizeAfter = 512, kBehind = 200 };

static std::vector<const char *> wanted;
static long launches = 2000;
static uint64_t seed = 20261124;
static unsigned long long *differing; /* on the device: pieces of 16 bytes */

/* A buffer that the producer of "behind" fills from `sound`. */
struct operand {
    void *live;
    const void *sound;
    size_t bytes;
};

/* A launch to be repeated; `d` is where its results go. */
struct subject {
    std::string name;
    size_t bytes; /* size of the results; a multiple of 16 */
    std::function<void(void *d)> launch;
};

static bool is_wanted(const std::string &name)
{
    bool found = true;
    for (const char *word : wanted) {
        found = found && name.find(word) != std::string::npos;
    }
    return found;
}

/* Counts the pieces of 16 bytes that differ from `expected`, and poisons d. */
__global__ void compare_and_poison(uint4 *d, const uint4 *expected, size_t n, unsigned long long *count)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const uint4 x = d[i], y = expected[i];
        if (x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w) {
            atomicAdd(count, 1ull);
        }
        d[i] = make_uint4(0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu);
    }
}

static unsigned long long count_differing(void)
{
    unsigned long long found = 0;
    CHECK(cudaMemcpy(&found, differing, sizeof found, cudaMemcpyDeviceToHost));
    return found;
}

/* Ends the process where the GPU has failed: no later launch could succeed. */
static void synchronize(const std::string &name, long launch)
{
    const cudaError_t code = cudaDeviceSynchronize();
    if (code != cudaSuccess) {
        printf("FAILED %s: %s within %ld launches\n", name.c_str(), cudaGetErrorString(code), launch);
        exit(1);
    }
}

/* Holds `count` launches of a subject to its first one. */
static void repeat(const subject &s, long count)
{
    const std::string name = "repeat " + s.name;
    if (!is_wanted(name)) {
        return;
    }
    uint8_t *const expected = device_array<uint8_t>(s.bytes), *const d = device_array<uint8_t>(kBuffers * s.bytes);
    cudaEvent_t begin, end;
    float ms = 0;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaMemset(differing, 0, sizeof *differing));
    s.launch(expected);
    synchronize(name, 1);
    CHECK(cudaEventRecord(begin));
    for (long i = 0; i < count; i += kBuffers) {
        for (long b = 0; b < kBuffers; ++b) {
            s.launch(d + b * s.bytes);
        }
        for (long b = 0; b < kBuffers; ++b) {
            compare_and_poison<<<264, 512>>>((uint4 *)(d + b * s.bytes), (const uint4 *)expected, s.bytes / 16,
                                             differing);
        }
        if (i % kSynchronizeAfter == 0) {
            synchronize(name, i + kBuffers);
        }
    }
    CHECK(cudaEventRecord(end));
    synchronize(name, count);
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    const unsigned long long found = count_differing();
    verdict(found == 0, name.c_str(), (std::to_string(found) + " pieces of 16 bytes differ").c_str());
    printf("%s: %ld launches, %.1f us each\n", name.c_str(), (count + kBuffers - 1) / kBuffers * kBuffers,
           (double)ms * 1e3 / (double)count);
    CHECK(cudaFree(expected));
    CHECK(cudaFree(d));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
}

enum { kMostOperands = 6, kNanoseconds = 20000 };

struct operands_by_value {
    operand all[kMostOperands];
};

/* Lets the next launch of the stream begin, waits, looks for results that are there too early, and fills the operands.
 * A multiprocessor changes its partition of L1 and shared memory only when it is idle. A kernel that needs much shared
 * memory would therefore wait for this one, and the test would find nothing. main() asks for the largest shared
 * memory. */
__global__ void produce(const operands_by_value o, const uint4 *d, size_t n, unsigned long long *count)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    uint64_t now, end;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end));
    end += kNanoseconds;
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now < end);
    const size_t thread = blockIdx.x * (size_t)blockDim.x + threadIdx.x, threads = (size_t)gridDim.x * blockDim.x;
    for (size_t i = thread; i < n; i += threads) {
        const uint4 x = __ldcg(d + i);
        if ((x.x & x.y & x.z & x.w) != 0xFFFFFFFFu) {
            atomicAdd(count, 1ull);
        }
    }
    for (const operand &of : o.all) {
        for (size_t i = thread; i < of.bytes / 4; i += threads) {
            static_cast<uint32_t *>(of.live)[i] = static_cast<const uint32_t *>(of.sound)[i];
        }
    }
}

/* Holds launches behind a slow producer of `inputs` to a launch whose operands are there. */
static void follow(const subject &s, std::vector<operand> inputs)
{
    const std::string name = "behind " + s.name;
    if (!is_wanted(name)) {
        return;
    }
    uint8_t *const expected = device_array<uint8_t>(s.bytes), *const d = device_array<uint8_t>(s.bytes);
    operands_by_value by_value = {};
    CHECK(cudaMemset(differing, 0, sizeof *differing));
    s.launch(expected);
    for (size_t i = 0; i < inputs.size(); ++i) {
        void *const copy = device_array<uint8_t>(inputs[i].bytes);
        CHECK(cudaMemcpy(copy, inputs[i].live, inputs[i].bytes, cudaMemcpyDeviceToDevice));
        inputs[i].sound = copy;
        by_value.all[i] = inputs[i];
    }
    for (long i = 0; i < kBehind; ++i) {
        for (const operand &of : inputs) {
            CHECK(cudaMemsetAsync(of.live, 0xFF, of.bytes));
        }
        produce<<<132, 64>>>(by_value, (const uint4 *)d, s.bytes / 16, differing);
        s.launch(d);
        compare_and_poison<<<264, 512>>>((uint4 *)d, (const uint4 *)expected, s.bytes / 16, differing);
    }
    synchronize(name, kBehind);
    const unsigned long long found = count_differing();
    verdict(found == 0, name.c_str(), (std::to_string(found) + " pieces of 16 bytes differ").c_str());
    for (const operand &of : inputs) {
        CHECK(cudaFree(const_cast<void *>(of.sound)));
    }
    CHECK(cudaFree(expected));
    CHECK(cudaFree(d));
}
