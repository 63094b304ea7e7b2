/* Flash-decoding: one query per (batch, head), its keys split over many blocks, and their results combined.

flash_decode_split    attention over one part of the keys, writes o_part and lse_part
flash_decode_combine  O = sum of exp(lse_s - lse) * o_s, lse = ln sum of exp(lse_s)

Changed from flash_forward.cu: with one query there are no blocks of queries to fill a GPU, so blocks share the keys.
And a key serves one query only: a tile in shared memory would be read once, so K and V go straight to registers.
The lanes of a warp share a key (its elements e), where in flash_forward.cu each lane had keys of its own.

Arrays: Q, O (batch*heads, d), K, V (batch*kv_heads, n_k, d), o_part (batch*heads, splits, d) float32,
lse_part (batch*heads, splits) float32, lse (batch*heads) float32, natural log. A part without keys: o_part 0,
lse_part -inf; no keys at all: O = 0, lse = -inf.
Launch: split with grid (splits, batch*heads), block (32, 4): a block owns keys n_k * split / splits up to
n_k * (split + 1) / splits, and its 4 warps take BLOCK_K of them in turn. combine: grid (1, batch*heads), block (32, 1).
Static shared memory, bytes: split 4 * 4 * (HEAD_DIM + 2), the states of 4 warps; combine none.
Options: BLOCK_K, the keys whose loads are under way together; HEAD_DIM; HALF 1: Q, K, V, O are half, all else float32.
No CAUSAL: the mask is aligned so that the last query sees every key. */

#if HALF
#include <cuda_fp16.h>
typedef __half element;
__device__ inline float to_float(element x) { return __half2float(x); }
__device__ inline element from_float(float x) { return __float2half(x); }
#else
typedef float element;
__device__ inline float to_float(element x) { return x; }
__device__ inline element from_float(float x) { return x; }
#endif

#define MINUS_INF __int_as_float(0xff800000)  // NVRTC has no INFINITY
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define WARPS 4
#define DIMS ((HEAD_DIM + 31) / 32)  // elements of q and o of a lane

__device__ inline float warp_sum(float x) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffff, x, other);
    return x;
}

extern "C" __global__ void flash_decode_split(
    const element *Q, const element *K, const element *V, float *o_part, float *lse_part,
    int n_k, int heads, int kv_heads, float scale)
{
    __shared__ float m_warp[WARPS], l_warp[WARPS], o_warp[WARPS][HEAD_DIM];

    const int lane = threadIdx.x, warp = threadIdx.y, splits = gridDim.x, split = blockIdx.x;
    const int kv_head = blockIdx.y / (heads / kv_heads);  // a group of query heads shares a head of keys and values
    const size_t query = blockIdx.y, part = query * splits + split;  // size_t: 2^31 elements are soon reached
    K += (size_t)kv_head * n_k * HEAD_DIM;
    V += (size_t)kv_head * n_k * HEAD_DIM;

    float q[DIMS], o[DIMS], m = MINUS_INF, l = 0;  // m in units of ln 2; all lanes of a warp hold the same m and l
    for (int c = 0; c < DIMS; c++) {
        const int e = lane + 32 * c;
        q[c] = e < HEAD_DIM ? scale * LOG2_E * to_float(Q[query * HEAD_DIM + e]) : 0;
        o[c] = 0;
    }

    const int k_begin = (long long)n_k * split / splits, k_end = (long long)n_k * (split + 1) / splits;
    for (int k_start = k_begin + warp * BLOCK_K; k_start < k_end; k_start += WARPS * BLOCK_K) {
        float S[BLOCK_K], m_new = m;
        for (int j = 0; j < BLOCK_K; j++) {
            const size_t key = min(k_start + j, k_end - 1);  // past the end: read the last key again, and mask it
            float s = 0;
            for (int c = 0; c < DIMS; c++) s += q[c] * to_float(K[key * HEAD_DIM + min(lane + 32 * c, HEAD_DIM - 1)]);
            s = warp_sum(s);
            S[j] = k_start + j < k_end ? s : MINUS_INF;
            m_new = fmaxf(m_new, S[j]);
        }
        const float reference = m_new == MINUS_INF ? 0 : m_new;  // (-inf) - (-inf) is NaN
        const float alpha = exp2f(m - reference);
        l = alpha * l;
        for (int c = 0; c < DIMS; c++) o[c] = alpha * o[c];
        for (int j = 0; j < BLOCK_K; j++) {
            const size_t key = min(k_start + j, k_end - 1);
            const float P = exp2f(S[j] - reference);
            l += P;
            for (int c = 0; c < DIMS; c++) o[c] += P * to_float(V[key * HEAD_DIM + min(lane + 32 * c, HEAD_DIM - 1)]);
        }
        m = m_new;
    }

    // Merge the states of the warps, as flash_lab's merge_states does: a warp without keys has weight 0.
    if (lane == 0) m_warp[warp] = m, l_warp[warp] = l;
    for (int c = 0; c < DIMS; c++)
        if (lane + 32 * c < HEAD_DIM) o_warp[warp][lane + 32 * c] = o[c];
    __syncthreads();  // all four states are complete

    m = MINUS_INF, l = 0;
    for (int w = 0; w < WARPS; w++) m = fmaxf(m, m_warp[w]);
    const float reference = m == MINUS_INF ? 0 : m;
    for (int w = 0; w < WARPS; w++) l += exp2f(m_warp[w] - reference) * l_warp[w];
    for (int e = warp * 32 + lane; e < HEAD_DIM; e += WARPS * 32) {
        float o_all = 0;
        for (int w = 0; w < WARPS; w++) o_all += exp2f(m_warp[w] - reference) * o_warp[w][e];
        o_part[part * HEAD_DIM + e] = o_all / (l == 0 ? 1 : l);  // an empty part is 0 / 1; a NaN stays NaN
    }
    if (warp == 0 && lane == 0) lse_part[part] = m * LN_2 + logf(l);
}

extern "C" __global__ void flash_decode_combine(
    const float *o_part, const float *lse_part, element *O, float *lse, int splits)
{
    const size_t query = blockIdx.y;
    o_part += query * splits * HEAD_DIM;
    lse_part += query * splits;

    float m = MINUS_INF, l = 0;
    for (int s = 0; s < splits; s++) m = fmaxf(m, lse_part[s]);
    const float reference = m == MINUS_INF ? 0 : m;
    for (int s = 0; s < splits; s++) l += expf(lse_part[s] - reference);
    const float lse_row = reference + logf(l), subtracted = l == 0 ? 0 : lse_row;

    for (int e = threadIdx.x; e < HEAD_DIM; e += 32) {
        float o = 0;
        for (int s = 0; s < splits; s++) o += expf(lse_part[s] - subtracted) * o_part[s * HEAD_DIM + e];
        O[query * HEAD_DIM + e] = from_float(o);
    }
    if (threadIdx.x == 0) lse[query] = lse_row;
}
