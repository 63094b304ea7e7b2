/* CUDA C on the CPU: what a .cu file finds in place of CUDA, so that its unchanged text compiles as C++ and runs.

Words such as __global__ are macros, built-ins are functions. kernels/cpu.py writes a file that includes this header,
then the student's text, then LAB_KERNEL(name, "parameters") for each kernel. The execution model is in cuda_on_cpu.cpp. */

#pragma once
#include "cuda_thread.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx (lab::here->running->thread)
#define blockIdx (lab::here->block)
#define blockDim (lab::here->block_dim)
#define gridDim (lab::here->grid_dim)
#define warpSize 32
#define assert(what) ((what) ? (void)0 : lab::fail(__LINE__, "assert(%s) is false", #what))

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
inline float2 make_float2(float x, float y) { return float2{x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
inline int2 make_int2(int x, int y) { return int2{x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return int4{x, y, z, w}; }

// Mathematics. libm is declared here, not included: <cmath> would take longer to compile than a kernel.
extern "C" {
float expf(float) noexcept; float exp2f(float) noexcept; float logf(float) noexcept; float log2f(float) noexcept;
float log1pf(float) noexcept; float expm1f(float) noexcept; float powf(float, float) noexcept;
float sqrtf(float) noexcept; float fabsf(float) noexcept; float floorf(float) noexcept; float ceilf(float) noexcept;
float rintf(float) noexcept; float tanhf(float) noexcept; float sinf(float) noexcept; float cosf(float) noexcept;
float fmaxf(float, float) noexcept; float fminf(float, float) noexcept; float fmaf(float, float, float) noexcept;
double exp(double) noexcept; double log(double) noexcept; double sqrt(double) noexcept; double fabs(double) noexcept;
double exp2(double) noexcept; double fmax(double, double) noexcept; double fmin(double, double) noexcept;
}
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline int __float_as_int(float x) { int i; memcpy(&i, &x, 4); return i; }
inline float __int_as_float(int i) { float x; memcpy(&x, &i, 4); return x; }
inline unsigned __float_as_uint(float x) { return (unsigned)__float_as_int(x); }
inline float __uint_as_float(unsigned i) { return __int_as_float((int)i); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
template <class A, class B> constexpr auto min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
template <class A, class B> constexpr auto max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
template <class T> T __ldg(const T *p) { return *p; }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}

// Atomics: blocks run on several OS threads. The order of their additions is open, as on a GPU.
template <class T, class F> T lab_atomic(T *place, F update) {
    T old, changed;
    __atomic_load(place, &old, __ATOMIC_SEQ_CST);
    do changed = update(old);
    while (!__atomic_compare_exchange(place, &old, &changed, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
template <class T, class U> T atomicAdd(T *p, U x) { return lab_atomic(p, [x](T old) { return (T)(old + x); }); }
template <class T, class U> T atomicMax(T *p, U x) { return lab_atomic(p, [x](T old) { return old < (T)x ? (T)x : old; }); }
template <class T, class U> T atomicMin(T *p, U x) { return lab_atomic(p, [x](T old) { return (T)x < old ? (T)x : old; }); }
template <class T, class U> T atomicExch(T *p, U x) { return lab_atomic(p, [x](T) { return (T)x; }); }
template <class T, class U, class V> T atomicCAS(T *p, U expected, V x) {
    return lab_atomic(p, [=](T old) { return old == (T)expected ? (T)x : old; });
}

// Barriers and warp collectives. __builtin_LINE() as a default is the line of the call.
#define LAB_LINE int line = __builtin_LINE()
inline void __syncthreads(LAB_LINE) { lab::barrier(line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, LAB_LINE) { lab::meet(lab::SYNCWARP, mask, 0, 0, line); }
inline unsigned __ballot_sync(unsigned mask, int x, LAB_LINE) { return lab::meet(lab::VOTE, mask, x != 0, 0, line); }
inline int __any_sync(unsigned mask, int x, LAB_LINE) { return __ballot_sync(mask, x, line) != 0; }
inline int __all_sync(unsigned mask, int x, LAB_LINE) { return __ballot_sync(mask, x, line) == mask; }

template <class T> T lab_shuffle(unsigned mask, T x, int source, int line) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = lab::meet(lab::SHUFFLE, mask, bits, source, line);
    memcpy(&x, &bits, sizeof x);
    return x;
}
inline int lab_lane() { return lab::here->running->lane; }
template <class T> T __shfl_sync(unsigned mask, T x, int source, int width = 32, LAB_LINE) {
    return lab_shuffle(mask, x, (lab_lane() & -width) + (source & (width - 1)), line);
}
template <class T> T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32, LAB_LINE) {
    const int lane = lab_lane(), first = lane & -width, source = lane - (int)delta;
    return lab_shuffle(mask, x, source >= first ? source : lane, line);
}
template <class T> T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32, LAB_LINE) {
    const int lane = lab_lane(), end = (lane & -width) + width, source = lane + (int)delta;
    return lab_shuffle(mask, x, source < end ? source : lane, line);
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32, LAB_LINE) {
    const int lane = lab_lane(), end = (lane & -width) + width, source = lane ^ bits;
    return lab_shuffle(mask, x, source < end ? source : lane, line);
}

// A kernel's parameter types, typedefs resolved, as NumPy names them ("*" pointer, "c" const): "*cf4" is const float *.
struct __half;
struct __half2;
namespace lab {
template <class T> constexpr const char *code = "?";
#define LAB_TYPE(type, name) \
    template <> inline constexpr const char *code<type> = name; \
    template <> inline constexpr const char *code<type *> = "*" name; \
    template <> inline constexpr const char *code<const type *> = "*c" name; \
    template <> inline constexpr const char *code<volatile type *> = "*" name;
LAB_TYPE(float, "f4") LAB_TYPE(double, "f8") LAB_TYPE(__half, "f2") LAB_TYPE(bool, "b1")
LAB_TYPE(float2, "f4") LAB_TYPE(float4, "f4") LAB_TYPE(__half2, "f2") LAB_TYPE(int2, "i4") LAB_TYPE(int4, "i4")
LAB_TYPE(signed char, "i1") LAB_TYPE(short, "i2") LAB_TYPE(int, "i4") LAB_TYPE(long, "i8") LAB_TYPE(long long, "i8")
LAB_TYPE(unsigned char, "u1") LAB_TYPE(unsigned short, "u2") LAB_TYPE(unsigned, "u4") LAB_TYPE(unsigned long, "u8")
LAB_TYPE(unsigned long long, "u8")

// The braces of Call{...} evaluate from left to right; the arguments of a function may come in any order.
template <class... A> struct Call { Call(void (*kernel)(A...), A... a) { kernel(a...); } };
template <class... A> void call(void (*kernel)(A...), void **values) {
    [[maybe_unused]] int i = 0;
    Call<A...>{kernel, *(A *)values[i++]...};
}
template <class... A> const char *const *types(void (*)(A...)) {
    static const char *const all[] = {code<A>..., nullptr};
    return all;
}
}
#define LAB_EXPORT extern "C" __attribute__((visibility("default")))
#define LAB_KERNEL(name, parameters) \
    LAB_EXPORT void lab_call_##name(void **values) { lab::call(name, values); } \
    LAB_EXPORT const char *const *lab_types_##name() { return lab::types(name); } \
    LAB_EXPORT const char *lab_names_##name() { return parameters; }
