/* C entry to one tile of CUTLASS's int8 product for Hopper, for sweep_build.py, which names: PEER_NAME; PEER_TOKENS,
 * PEER_ROWS and PEER_DEPTH of a tile; PEER_ALONG_M and PEER_ALONG_N of a cluster; PEER_SCHEDULE and PEER_EPILOGUE,
 * CUTLASS's names. Needs the headers of CUTLASS (docs/peers.md). */
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

namespace
{

using namespace cute;
namespace fusion = cutlass::epilogue::fusion;

using tile = Shape<Int<PEER_TOKENS>, Int<PEER_ROWS>, Int<PEER_DEPTH>>;
using cluster = Shape<Int<PEER_ALONG_M>, Int<PEER_ALONG_N>, _1>;
using row_major = cutlass::layout::RowMajor;
using column_major = cutlass::layout::ColumnMajor;
using result = cutlass::bfloat16_t;
constexpr auto kRound = cutlass::FloatRoundStyle::round_to_nearest;

/* scale_a * (scale_w * sum), as vLLM's epilogue for int8. */
using by_w = fusion::Sm90EVT<fusion::Sm90Compute<cutlass::multiplies, float, float, kRound>,
                             fusion::Sm90RowBroadcast<0, tile, float>, fusion::Sm90AccFetch>;
using by_both = fusion::Sm90EVT<fusion::Sm90Compute<cutlass::multiplies, result, float, kRound>,
                                fusion::Sm90ColBroadcast<0, tile, float>, by_w>;
using epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, tile, cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    int32_t, float, void, row_major, 8, result, row_major, 8, cutlass::epilogue::PEER_EPILOGUE, by_both>::CollectiveOp;
using mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, int8_t, row_major, 16, int8_t, column_major, 16, int32_t, tile,
    cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename epilogue::SharedStorage))>,
    cutlass::gemm::PEER_SCHEDULE>::CollectiveOp;
using kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, mainloop, epilogue>;
using device_gemm = cutlass::gemm::device::GemmUniversalAdapter<kernel>;

} // namespace

/* Computes d[m, n] in BF16 from a[m, k], w[n, k] and a scale for each row of both. Returns CUTLASS's status. */
extern "C" int PEER_NAME(const int8_t *a, const int8_t *w, const float *scale_a, const float *scale_w, void *d, int m,
                         int n, int k, int processors, void *stream)
{
    typename kernel::Arguments args = {};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = {m, n, k, 1};
    args.mainloop = {a, {k, {}, 0}, w, {k, {}, 0}};
    args.epilogue.ptr_D = static_cast<result *>(d);
    args.epilogue.dD = {n, {}, 0};
    args.epilogue.thread = {{scale_a}, {{scale_w}, {}, {}}, {}};
    args.hw_info.sm_count = processors;
    device_gemm product;
    if (device_gemm::get_workspace_size(args) != 0) {
        return (int)cutlass::Status::kErrorWorkspaceNull;
    }
    return (int)product.run(args, nullptr, static_cast<cudaStream_t>(stream));
}
