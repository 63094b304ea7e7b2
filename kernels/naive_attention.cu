/* softmax(scale * Q @ K.T) @ V through the full score matrix: three kernels, each waiting for the one before.

naive_scores   S = scale * Q @ K.T, masked scores -inf
naive_softmax  each row of S becomes its P in place, in three passes (max; sum; divide); writes lse
naive_output   O = P @ V

Arrays: Q, O (batch*heads, n_q, d), K, V (batch*kv_heads, n_k, d), S (batch*heads, n_q, n_k) float32,
lse (batch*heads, n_q) float32, natural log. A row that sees no key: O = 0, lse = -inf. n_k may be 0.
Launch, all three: grid (ceil(n_q / BLOCK_Q), batch*heads), block (32, BLOCK_Q), BLOCK_Q <= 32: a warp owns a query.
Shared memory: none. S travels to memory once and back three times, P once each way: that is what costs.
Options: BLOCK_Q; HEAD_DIM; CAUSAL 1: query i sees key j when j <= i + n_k - n_q; HALF 1: Q, K, V, O are half. */

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

__device__ inline float warp_max(float x) {
    for (int other = 16; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, other));
    return x;
}

__device__ inline float warp_sum(float x) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffff, x, other);
    return x;
}

extern "C" __global__ void naive_scores(
    const element *Q, const element *K, float *S, int n_q, int n_k, int heads, int kv_heads, float scale)
{
    const int lane = threadIdx.x, row = blockIdx.x * BLOCK_Q + threadIdx.y;
    if (row >= n_q) return;  // no barrier and no shuffle follows
    const int kv_head = blockIdx.y / (heads / kv_heads);  // a group of query heads shares a head of keys and values
    const size_t query = (size_t)blockIdx.y * n_q + row;  // size_t: 2^31 elements are soon reached
    Q += query * HEAD_DIM;
    K += (size_t)kv_head * n_k * HEAD_DIM;
    S += query * n_k;

    for (int key = lane; key < n_k; key += 32) {
        const bool visible = !CAUSAL || key <= row + n_k - n_q;
        float s = 0;
        for (int e = 0; e < HEAD_DIM; e++) s += to_float(Q[e]) * to_float(K[(size_t)key * HEAD_DIM + e]);
        S[key] = visible ? scale * s : MINUS_INF;
    }
}

extern "C" __global__ void naive_softmax(float *S, float *lse, int n_q, int n_k)
{
    const int lane = threadIdx.x, row = blockIdx.x * BLOCK_Q + threadIdx.y;
    if (row >= n_q) return;  // a row is a warp: all its lanes leave together, and no shuffle waits for them
    const size_t query = (size_t)blockIdx.y * n_q + row;
    S += query * n_k;

    float m = MINUS_INF;
    for (int key = lane; key < n_k; key += 32) m = fmaxf(m, S[key]);
    m = warp_max(m);
    const float reference = m == MINUS_INF ? 0 : m;  // (-inf) - (-inf) is NaN

    float l = 0;
    for (int key = lane; key < n_k; key += 32) l += expf(S[key] - reference);
    l = warp_sum(l);
    const float divisor = l == 0 ? 1 : l;  // an empty row is 0 / 1; a NaN stays NaN

    for (int key = lane; key < n_k; key += 32) S[key] = expf(S[key] - reference) / divisor;
    if (lane == 0) lse[query] = reference + logf(l);
}

extern "C" __global__ void naive_output(
    const float *P, const element *V, element *O, int n_q, int n_k, int heads, int kv_heads)
{
    const int lane = threadIdx.x, row = blockIdx.x * BLOCK_Q + threadIdx.y;
    if (row >= n_q) return;
    const int kv_head = blockIdx.y / (heads / kv_heads);  // a group of query heads shares a head of keys and values
    const size_t query = (size_t)blockIdx.y * n_q + row;
    P += query * n_k;
    V += (size_t)kv_head * n_k * HEAD_DIM;
    O += query * HEAD_DIM;

    for (int e = lane; e < HEAD_DIM; e += 32) {
        float o = 0;
        for (int key = 0; key < n_k; key++) o += P[key] * to_float(V[(size_t)key * HEAD_DIM + e]);
        O[e] = from_float(o);
    }
}
