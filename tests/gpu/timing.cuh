/* Owns how a kernel is timed: a CUDA graph of 20 launches or as many as asked for, the median of 22 replays. */
#pragma once

#include "tests/gpu/gpu_common.cuh"

static int ascending(const void *x, const void *y)
{
    const float a = *static_cast<const float *>(x), b = *static_cast<const float *>(y);
    return (a > b) - (a < b);
}

/* Microseconds a launch; `launch(stream, i)` puts the i-th one on the stream. */
template <typename F> static double time_each_us(const F &launch, int launches = 20)
{
    enum { kReplays = 22 };
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    launch(stream, 0);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; ++i) {
        launch(stream, i);
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    float ms[kReplays];
    for (int i = 0; i < kReplays; ++i) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&ms[i], begin, end));
    }
    qsort(ms, kReplays, sizeof *ms, ascending);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaStreamDestroy(stream));
    return (ms[kReplays / 2 - 1] + ms[kReplays / 2]) / 2 * 1000.0 / launches;
}
