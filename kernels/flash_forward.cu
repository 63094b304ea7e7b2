/* FlashAttention-2, forward: softmax(scale * Q @ K.T) @ V in one kernel, with a tile of scores at a time.

Changed from naive_attention.cu: S never reaches memory. A block keeps its queries and walks over the keys, tile by
tile; m, l and o live in registers and are brought to the new max by alpha, as in flash_lab's fa2_exp2_step. A number
read from memory serves a whole block, a number read from shared memory several queries.

Arrays: Q, O (batch*heads, n_q, d), K, V (batch*kv_heads, n_k, d), lse (batch*heads, n_q) float32, natural log.
A row that sees no key: O = 0, lse = -inf. n_k may be 0.
Launch: grid (ceil(n_q / BLOCK_Q), batch*heads), block (32, 4). A block owns BLOCK_Q queries, each of its 4 warps
BLOCK_Q / 4 of them; a lane owns keys lane, lane + 32, ... of S and P, and elements lane, lane + 32, ... of o.
Dynamic shared memory, bytes: 4 * (BLOCK_Q * HEAD_DIM + BLOCK_K * (2 * HEAD_DIM + 1) + BLOCK_Q * BLOCK_K)
for the tiles of Q, K, V and P; that of K has one more column, so that 32 lanes reading 32 keys meet 32 banks.
Options: BLOCK_Q, a multiple of 4; BLOCK_K; HEAD_DIM; CAUSAL 1: query i sees key j when j <= i + n_k - n_q;
HALF 1: Q, K, V, O are half, all else float32. */

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

#if BLOCK_Q % 4
#error "BLOCK_Q has to be a multiple of 4: each of 4 warps takes a quarter of the queries"
#endif

#define MINUS_INF __int_as_float(0xff800000)  // NVRTC has no INFINITY
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define WARPS 4
#define ROWS (BLOCK_Q / WARPS)       // queries of a warp
#define KEYS ((BLOCK_K + 31) / 32)   // keys of a lane
#define DIMS ((HEAD_DIM + 31) / 32)  // elements of o of a lane

__device__ inline float warp_max(float x) {
    for (int other = 16; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, other));
    return x;
}

__device__ inline float warp_sum(float x) {
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffff, x, other);
    return x;
}

// `rows` rows from memory to a tile with `pitch` floats per row. Past the last row come zeros: garbage may be NaN,
// and a P of 0 times NaN is NaN.
__device__ inline void load_tile(float *tile, int pitch, const element *source, int rows, int rows_left) {
    for (int i = threadIdx.y * 32 + threadIdx.x; i < rows * HEAD_DIM; i += WARPS * 32) {
        const int row = i / HEAD_DIM, e = i % HEAD_DIM;
        tile[row * pitch + e] = row < rows_left ? to_float(source[i]) : 0;
    }
}

extern __shared__ float shared[];

extern "C" __global__ void flash_forward(
    const element *Q, const element *K, const element *V, element *O, float *lse,
    int n_q, int n_k, int heads, int kv_heads, float scale)
{
    float *Q_tile = shared, *K_tile = Q_tile + BLOCK_Q * HEAD_DIM, *V_tile = K_tile + BLOCK_K * (HEAD_DIM + 1);
    float *P_tile = V_tile + BLOCK_K * HEAD_DIM;

    const int lane = threadIdx.x, q_start = blockIdx.x * BLOCK_Q;
    const int first = threadIdx.y * ROWS;  // this warp's rows of the tiles of Q and P start here
    const float *Q_warp = Q_tile + first * HEAD_DIM;
    float *P_warp = P_tile + first * BLOCK_K;
    const int kv_head = blockIdx.y / (heads / kv_heads);  // a group of query heads shares a head of keys and values
    const size_t query = (size_t)blockIdx.y * n_q + q_start;  // size_t: 2^31 elements are soon reached
    K += (size_t)kv_head * n_k * HEAD_DIM;
    V += (size_t)kv_head * n_k * HEAD_DIM;

    // Rows past n_q compute on zeros up to the end: every thread has to meet every barrier.
    load_tile(Q_tile, HEAD_DIM, Q + query * HEAD_DIM, BLOCK_Q, n_q - q_start);

    float m[ROWS], l[ROWS] = {}, o[ROWS][DIMS] = {};  // m in units of ln 2; l: this lane's part of the sum
    for (int r = 0; r < ROWS; r++) m[r] = MINUS_INF;

    // Where the last query of the block stops to see; tiles beyond are hidden from all of its queries.
    const int k_end = CAUSAL ? min(q_start + BLOCK_Q, n_q) + n_k - n_q : n_k;
    for (int k_start = 0; k_start < k_end; k_start += BLOCK_K) {
        const size_t tile = (size_t)k_start * HEAD_DIM;
        load_tile(K_tile, HEAD_DIM + 1, K + tile, BLOCK_K, n_k - k_start);
        load_tile(V_tile, HEAD_DIM, V + tile, BLOCK_K, n_k - k_start);
        __syncthreads();  // the tiles are complete

        float S[ROWS][KEYS] = {};  // a lane without a key repeats the last one, to be masked
        #pragma unroll 4  // four neighbours of a row of Q are then one load
        for (int e = 0; e < HEAD_DIM; e++)
            for (int c = 0; c < KEYS; c++) {
                const float k = K_tile[min(lane + 32 * c, BLOCK_K - 1) * (HEAD_DIM + 1) + e];
                for (int r = 0; r < ROWS; r++) S[r][c] += Q_warp[r * HEAD_DIM + e] * k;
            }

        #pragma unroll  // in full: an array indexed by a variable would not be in registers
        for (int r = 0; r < ROWS; r++) {
            float m_tile = MINUS_INF;
            for (int c = 0; c < KEYS; c++) {
                const int j = lane + 32 * c, key = k_start + j;
                const bool visible = j < BLOCK_K && key < n_k && (!CAUSAL || key <= q_start + first + r + n_k - n_q);
                S[r][c] = visible ? scale * LOG2_E * S[r][c] : MINUS_INF;
                m_tile = fmaxf(m_tile, S[r][c]);
            }
            const float m_new = fmaxf(m[r], warp_max(m_tile));
            const float reference = m_new == MINUS_INF ? 0 : m_new;  // (-inf) - (-inf) is NaN
            const float alpha = exp2f(m[r] - reference);
            l[r] = alpha * l[r];
            for (int c = 0; c < KEYS; c++) {
                const float P = exp2f(S[r][c] - reference);
                l[r] += P;
                if (lane + 32 * c < BLOCK_K) P_warp[r * BLOCK_K + lane + 32 * c] = P;
            }
            for (int c = 0; c < DIMS; c++) o[r][c] = alpha * o[r][c];
            m[r] = m_new;
        }
        __syncwarp();  // a row of P is written and read by the same warp

        #pragma unroll 4  // likewise for P; a lane without an element of o repeats the last one and does not store it
        for (int j = 0; j < BLOCK_K; j++)
            for (int c = 0; c < DIMS; c++) {
                const float v = V_tile[j * HEAD_DIM + min(lane + 32 * c, HEAD_DIM - 1)];
                for (int r = 0; r < ROWS; r++) o[r][c] += P_warp[r * BLOCK_K + j] * v;
            }
        __syncthreads();  // no warp still reads what the next tiles overwrite
    }

    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float l_row = warp_sum(l[r]);  // once per row, not once per tile
        const float divisor = l_row == 0 ? 1 : l_row;  // an empty row is 0 / 1; a NaN stays NaN
        if (q_start + first + r >= n_q) continue;
        for (int c = 0; c < DIMS; c++)
            if (lane + 32 * c < HEAD_DIM)
                O[(query + first + r) * HEAD_DIM + lane + 32 * c] = from_float(o[r][c] / divisor);
        if (lane == 0) lse[query + first + r] = m[r] * LN_2 + logf(l_row);
    }
}
