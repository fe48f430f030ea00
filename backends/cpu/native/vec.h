// Vector helpers of the CPU kernels: sixteen float lanes, lowered by the compiler to what the machine has.
// bf16 helpers need AVX512_BF16; without it only the float32 kernels are built (see features() in misc.cpp).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint16_t bf16;

static inline v16 vload(const float* p) { v16 x; std::memcpy(&x, p, 64); return x; }
static inline void vstore(float* p, v16 x) { std::memcpy(p, &x, 64); }
static inline v16 vset(float x) { return v16{} + x; }
static inline v16 vmax(v16 a, v16 b) { return a > b ? a : b; }
static inline v16 vmin(v16 a, v16 b) { return a < b ? a : b; }
typedef float v8 __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));
static inline v8 low_half(v16 x) { v8 y; std::memcpy(&y, &x, 32); return y; }
static inline v8 high_half(v16 x) { v8 y; std::memcpy(&y, (const char*)&x + 32, 32); return y; }
static inline v4 fold(v8 x, bool largest) {
  v4 a, b;
  std::memcpy(&a, &x, 16);
  std::memcpy(&b, (const char*)&x + 16, 16);
  return largest ? (a > b ? a : b) : a + b;
}
static inline float hsum(v16 x) { v4 s = fold(low_half(x) + high_half(x), false); return (s[0] + s[2]) + (s[1] + s[3]); }
static inline float hmax(v16 x) {
  v8 a = low_half(x), b = high_half(x);
  v4 s = fold(a > b ? a : b, true);
  float left = s[0] > s[2] ? s[0] : s[2], right = s[1] > s[3] ? s[1] : s[3];
  return left > right ? left : right;
}

static inline float bf2f(bf16 x) { uint32_t u = uint32_t(x) << 16; float f; std::memcpy(&f, &u, 4); return f; }
static inline bf16 f2bf(float f) {
  uint32_t u; std::memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16((u >> 16) | 0x40u);  // keep NaN a NaN
  return bf16((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// exp by 2^n * polynomial, about 2 ulp; inputs below -87.3 give 0 so that masked scores vanish exactly.
static inline v16 vexp(v16 x) {
  v16 clipped = vmin(vmax(x, vset(-87.3f)), vset(88.7f));
  v16 n = clipped * 1.44269504f + 12582912.0f;
  v16i ni = (v16i)n - 0x4b400000;
  n = n - 12582912.0f;
  v16 r = clipped - n * 0.693359375f + n * 2.12194440e-4f;
  v16 p = vset(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  v16 scale = (v16)((ni + 127) << 23);
  return x < vset(-87.3f) ? vset(0.0f) : p * scale;
}

template <typename T> struct IO;
template <> struct IO<float> {
  static inline v16 load(const float* p) { return vload(p); }
  static inline void store(float* p, v16 x) { vstore(p, x); }
  static inline float get(float x) { return x; }
  static inline float put(float x) { return x; }
};
template <> struct IO<bf16> {
  static inline v16 load(const bf16* p) {
    v16 x;
    for (int i = 0; i < 16; i++) x[i] = bf2f(p[i]);
    return x;
  }
  static inline void store(bf16* p, v16 x) {
    for (int i = 0; i < 16; i++) p[i] = f2bf(x[i]);
  }
  static inline float get(bf16 x) { return bf2f(x); }
  static inline bf16 put(float x) { return f2bf(x); }
};
#ifdef __AVX512BF16__
static inline v16 bfload(const bf16* p) {
  return (v16)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
static inline void bfstore(bf16* p, v16 x) {
  __m256bh h = _mm512_cvtneps_pbh((__m512)x);
  std::memcpy(p, &h, 32);
}
#define LOAD_BF bfload
#define STORE_BF bfstore
#else
#define LOAD_BF IO<bf16>::load
#define STORE_BF IO<bf16>::store
#endif
template <typename T> static inline v16 ld(const T* p) { return IO<T>::load(p); }
template <> inline v16 ld<bf16>(const bf16* p) { return LOAD_BF(p); }
template <typename T> static inline void st(T* p, v16 x) { IO<T>::store(p, x); }
template <> inline void st<bf16>(bf16* p, v16 x) { STORE_BF(p, x); }
