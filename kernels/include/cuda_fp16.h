/* The part of CUDA's cuda_fp16.h the kernels use, for the CPU runner; a GPU build finds NVIDIA's own file instead.

half is storage only: it converts to float and back, and has no arithmetic. NVIDIA's rounds after every operation;
one that silently computed in float would give a laptop better answers than the GPU.
Written in bits, so that every compiler and processor gives the same: nearest, ties to even; overflow is infinity. */

#pragma once
#include <stdint.h>
#include <string.h>

struct __half { uint16_t bits; };
typedef __half half;
struct alignas(4) __half2 { __half x, y; };
typedef __half2 half2;

inline uint32_t lab_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
inline float lab_float(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

inline float __half2float(__half h) {
    const uint32_t magnitude = (h.bits & 0x7fffu) << 13, sign = (h.bits & 0x8000u) << 16;
    const float x = lab_float(magnitude) * 0x1p112f;              // the exponent's bias is 15 here, 127 there
    const uint32_t special = x >= 0x1p16f ? 0x7f800000u : 0;      // infinity and NaN keep the largest exponent
    return lab_float(lab_bits(x) | special | sign);
}

inline __half __float2half_rn(float x) {
    const uint32_t sign = lab_bits(x) >> 16 & 0x8000u, u = lab_bits(x) & 0x7fffffffu;
    uint32_t rounded;
    if (u > 0x7f800000u) rounded = 0x7fff;                        // NaN, the one NVIDIA's conversion gives
    else if (u >= 0x477ff000u) rounded = 0x7c00;                  // from 65520 on: infinity
    else if (u < 0x38800000u) rounded = lab_bits(lab_float(u) + 0.5f) - 0x3f000000u;  // subnormal: + 0.5 rounds it
    else rounded = (u - 0x38000000u + 0xfff + (u >> 13 & 1)) >> 13;
    return __half{(uint16_t)(sign | rounded)};
}

inline __half __float2half(float x) { return __float2half_rn(x); }
inline uint16_t __half_as_ushort(__half h) { return h.bits; }
inline __half __ushort_as_half(uint16_t bits) { return __half{bits}; }
inline __half2 __halves2half2(__half x, __half y) { return __half2{x, y}; }
inline __half2 __floats2half2_rn(float x, float y) { return __half2{__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __float22half2_rn(float2 a) { return __floats2half2_rn(a.x, a.y); }
inline float2 __half22float2(__half2 h) { return float2{__half2float(h.x), __half2float(h.y)}; }
inline float __low2float(__half2 h) { return __half2float(h.x); }
inline float __high2float(__half2 h) { return __half2float(h.y); }
