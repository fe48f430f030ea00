// out[M,N] = x[M,K] * W[N,K]^T + bias, W packed in panels of 32 output columns.
//
// Packed forms (NP = ceil(N / 32) panels, zero padded):
//   float32: [NP][K][32]   bf16: [NP][K/2][32][2]   int8: [NP][K/2][32][2] with scale[N]   int4: see there
// Every output element is summed over k in one order whatever M is: results are bit-equal for any batch.
#include "pool.h"
#include "vec.h"
#include <type_traits>

#define PANEL 32
#define L2_BYTES (640 * 1024)  // of a 1 MiB L2; a larger one loses nothing much
#define GROUP 32  // inputs that share a scale in int4

template <typename TO>
static inline void store_row(TO* out, const v16* acc, const float* bias, const float* scale, int cols) {
  for (int j = 0; j < PANEL / 16; j++) {
    int left = cols - j * 16;
    if (left <= 0) return;
    v16 y = acc[j];
    if (left >= 16) {
      if (scale) y = y * vload(scale + j * 16);
      if (bias) y = y + vload(bias + j * 16);
      st<TO>(out + j * 16, y);
    } else {
      for (int i = 0; i < left; i++) {
        float f = y[i];
        if (scale) f *= scale[j * 16 + i];
        if (bias) f += bias[j * 16 + i];
        out[j * 16 + i] = IO<TO>::put(f);
      }
    }
  }
}

template <int MR, typename TO>
static inline void tile_f32(const float* x, long ldx, const float* w, int K, TO* out, long ldo, const float* bias,
                            const float* scale, int cols) {
  v16 acc[MR][2];
  for (int m = 0; m < MR; m++) acc[m][0] = acc[m][1] = vset(0);
  for (int k = 0; k < K; k++) {
    v16 b0 = vload(w + k * PANEL), b1 = vload(w + k * PANEL + 16);
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++) {
      v16 a = vset(x[m * ldx + k]);
      acc[m][0] += a * b0;
      acc[m][1] += a * b1;
    }
  }
  for (int m = 0; m < MR; m++) store_row<TO>(out + m * ldo, acc[m], bias, scale, cols);
}

#ifdef __AVX512BF16__
static inline __m512bh bcast_pair(const bf16* p) {
  int32_t u; std::memcpy(&u, p, 4);
  return (__m512bh)_mm512_set1_epi32(u);
}
static inline __m512bh widen_int8(const int8_t* p) {  // exact: bf16 holds every int8
  __m128i lo = _mm_loadu_si128((const __m128i*)p), hi = _mm_loadu_si128((const __m128i*)(p + 16));
  return _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(hi)), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(lo)));
}
static inline __m512bh panel_load(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
static inline __m512bh panel_load(const int8_t* p) { return widen_int8(p); }

// A panel to fetch while others are worked on, in as many parts as there are tiles to do it in, two at most: all of it
// during one tile would ask for more than memory gives.
struct Ahead {
  const char* line = nullptr;  // null: nothing to fetch
  bool both = false;           // two lines a step, not one

  inline void fetch(int step) const {
    if (!line) return;
    _mm_prefetch(line + (both ? 128 : 64) * (long)step, _MM_HINT_T1);
    if (both) _mm_prefetch(line + 128 * (long)step + 64, _MM_HINT_T1);
  }
};

template <int MR, typename TW, typename TO>
static inline void tile_bf16(const bf16* x, long ldx, const TW* w, int K, TO* out, long ldo, const float* bias,
                             const float* scale, int cols, Ahead ahead) {
  __m512 acc[MR][2];
#pragma GCC unroll 16
  for (int m = 0; m < MR; m++) acc[m][0] = acc[m][1] = _mm512_setzero_ps();
  for (int k = 0; k < K; k += 2) {
    __m512bh b0 = panel_load(w + k * PANEL), b1 = panel_load(w + k * PANEL + 32);
    ahead.fetch(k / 2);
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++) {
      __m512bh a = bcast_pair(x + m * ldx + k);
      acc[m][0] = _mm512_dpbf16_ps(acc[m][0], a, b0);
      acc[m][1] = _mm512_dpbf16_ps(acc[m][1], a, b1);
    }
  }
  for (int m = 0; m < MR; m++) {
    v16 pair[2] = {(v16)acc[m][0], (v16)acc[m][1]};
    store_row<TO>(out + m * ldo, pair, bias, scale, cols);
  }
}

// Two neighbouring panels at once for few rows: more independent sums, so memory and not latency is the limit.
template <int MR, typename TW, typename TO>
static inline void tile_bf16_wide(const bf16* x, long ldx, const TW* w0, const TW* w1, int K, TO* out, long ldo,
                                  const float* bias, const float* scale, int cols1) {
  __m512 acc[MR][4];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) acc[m][0] = acc[m][1] = acc[m][2] = acc[m][3] = _mm512_setzero_ps();
  for (int k = 0; k < K; k += 2) {
    const long o = (long)k * PANEL;
    if constexpr (sizeof(TW) == 1) {
      _mm_prefetch((const char*)(w0 + o) + 2048, _MM_HINT_T0);
      _mm_prefetch((const char*)(w1 + o) + 2048, _MM_HINT_T0);
    } else {
      _mm_prefetch((const char*)(w0 + o) + 4096, _MM_HINT_T0);
      _mm_prefetch((const char*)(w0 + o) + 4160, _MM_HINT_T0);
      _mm_prefetch((const char*)(w1 + o) + 4096, _MM_HINT_T0);
      _mm_prefetch((const char*)(w1 + o) + 4160, _MM_HINT_T0);
    }
    __m512bh b0 = panel_load(w0 + o), b1 = panel_load(w0 + o + 32);
    __m512bh b2 = panel_load(w1 + o), b3 = panel_load(w1 + o + 32);
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      __m512bh a = bcast_pair(x + m * ldx + k);
      acc[m][0] = _mm512_dpbf16_ps(acc[m][0], a, b0);
      acc[m][1] = _mm512_dpbf16_ps(acc[m][1], a, b1);
      acc[m][2] = _mm512_dpbf16_ps(acc[m][2], a, b2);
      acc[m][3] = _mm512_dpbf16_ps(acc[m][3], a, b3);
    }
  }
  for (int m = 0; m < MR; m++) {
    v16 left[2] = {(v16)acc[m][0], (v16)acc[m][1]}, right[2] = {(v16)acc[m][2], (v16)acc[m][3]};
    store_row<TO>(out + m * ldo, left, bias, scale, PANEL);
    store_row<TO>(out + m * ldo + PANEL, right, bias ? bias + PANEL : nullptr, scale ? scale + PANEL : nullptr, cols1);
  }
}

template <typename TW, typename TO>
static void panel_rows_bf16(const bf16* x, long ldx, const TW* w, int M, int K, TO* out, long ldo, const float* bias,
                            const float* scale, int cols, const TW* next) {
  // Tiles of equal height: 32 rows run as 11 + 11 + 10, since a low last tile would waste its loads.
  const int tiles = (M + 13) / 14, low = M / tiles, higher = M % tiles;
  for (int t = 0, m = 0; t < tiles; t++) {
    const int rows = low + (t < higher);
    const bool fetches = next && t < 2;
    const Ahead ahead{fetches ? (const char*)next + (long)t * K / 2 * 64 : nullptr, tiles == 1};
#define TILE(R) \
  case R: tile_bf16<R, TW, TO>(x + m * ldx, ldx, w, K, out + m * ldo, ldo, bias, scale, cols, ahead); break;
    switch (rows) {
      TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12) TILE(13) TILE(14)
    }
#undef TILE
    m += rows;
  }
}

static void widen_panel(const int8_t* src, bf16* dst, long count) {
  for (long i = 0; i < count; i += 32) {
    __m512bh h = widen_int8(src + i);
    std::memcpy(dst + i, &h, 64);
  }
}

template <typename TW, typename TO>
static void linear_bf16(const bf16* x, long ldx, const TW* w, const float* bias, const float* scale, TO* out, long ldo,
                        int M, int N, int K) {
  const int panels = (N + PANEL - 1) / PANEL;
  const long size = (long)PANEL * K;
  if (M <= 4) {
    const int pairs = (panels + 1) / 2;
    parallel_for(pairs, true, [=](long q) {
      const int p = (int)q * 2, n = p * PANEL;
      const float* b = bias ? bias + n : nullptr;
      const float* s = scale ? scale + n : nullptr;
      const TW* w0 = w + p * size;
      if (p + 1 == panels) {
        panel_rows_bf16<TW, TO>(x, ldx, w0, M, K, out + n, ldo, b, s, N - n, nullptr);
        return;
      }
      const int cols1 = N - n - PANEL < PANEL ? N - n - PANEL : PANEL;
#define WIDE(R) \
  case R: tile_bf16_wide<R, TW, TO>(x, ldx, w0, w0 + size, K, out + n, ldo, b, s, cols1); break;
      switch (M) { WIDE(1) WIDE(2) WIDE(3) WIDE(4) }
#undef WIDE
    });
    return;
  }
  // Rows of x that stay in a core's L2 while the panels stream by: the more, the less often W is read again.
  const int fits = L2_BYTES / (2 * K) / 14 * 14, chunk = fits < 14 ? 14 : fits, ahead = Pool::get().size();
  parallel_for((long)(M + chunk - 1) / chunk * panels, true, [=](long i) {
    const int m0 = (int)(i / panels) * chunk, p = (int)(i % panels), rows = M - m0 < chunk ? M - m0 : chunk;
    const int n = p * PANEL, cols = N - n < PANEL ? N - n : PANEL;
    const float* b = bias ? bias + n : nullptr;
    const float* s = scale ? scale + n : nullptr;
    const bf16* xr = x + m0 * ldx;
    TO* o = out + m0 * ldo + n;
    if constexpr (sizeof(TW) == 1) {
      bf16* wide = (bf16*)scratch(size * 2);
      widen_panel((const int8_t*)(w + p * size), wide, size);
      panel_rows_bf16<bf16, TO>(xr, ldx, wide, rows, K, o, ldo, b, s, cols, nullptr);
    } else {
      const TW* next = p + ahead < panels && rows <= 64 ? w + (p + ahead) * size : nullptr;  // most likely ours
      panel_rows_bf16<TW, TO>(xr, ldx, w + p * size, rows, K, o, ldo, b, s, cols, next);
    }
  });
}
#endif

static void widen_panel_f32(const int8_t* src, float* dst, int K) {  // [K/2][32][2] to [K][32]
  for (int k = 0; k < K; k++)
    for (int n = 0; n < PANEL; n++) dst[k * PANEL + n] = src[(k / 2 * PANEL + n) * 2 + k % 2];
}

static void widen_panel_f32(const uint8_t* src, const _Float16* sm, float* dst, int K) {  // int4, see below
  for (int k = 0; k < K; k++) {
    const _Float16* s = sm + k / GROUP * 2 * PANEL;
    for (int n = 0; n < PANEL; n++) {
      const int byte = src[k / 2 * PANEL + n % 16 * 2 + k % 2];
      dst[k * PANEL + n] = (n < 16 ? byte & 15 : byte >> 4) * (float)s[n] + (float)s[PANEL + n];
    }
  }
}

// TW float; int8_t with scale[N]; uint8_t for int4, whose scale is its float16 scales and minima.
template <typename TW>
static void linear_f32(const float* x, long ldx, const TW* w, const float* bias, const void* scale, float* out, long ldo,
                       int M, int N, int K) {
  const int panels = (N + PANEL - 1) / PANEL, chunk = 12 * 8;
  constexpr bool int4 = std::is_same<TW, uint8_t>::value;
  parallel_for((long)(M + chunk - 1) / chunk * panels, true, [=](long i) {
    const int m0 = (int)(i / panels) * chunk, p = (int)(i % panels), rows = M - m0 < chunk ? M - m0 : chunk;
    const int n = p * PANEL, cols = N - n < PANEL ? N - n : PANEL;
    const float* b = bias ? bias + n : nullptr;
    const float* s = scale && !int4 ? (const float*)scale + n : nullptr;
    const float* wp = (const float*)(w + (long)p * PANEL * K);
    if constexpr (sizeof(TW) == 1) {
      float* wide = (float*)scratch((size_t)PANEL * K * 4);
      if constexpr (int4) widen_panel_f32(w + (long)p * PANEL * K / 2, (const _Float16*)scale + (long)p * K / GROUP * 2 * PANEL, wide, K);
      else widen_panel_f32(w + (long)p * PANEL * K, wide, K);
      wp = wide;
    }
    const float* xr = x + m0 * ldx;
    float* o = out + m0 * ldo + n;
    int m = 0;
    for (; m + 12 <= rows; m += 12) tile_f32<12, float>(xr + m * ldx, ldx, wp, K, o + m * ldo, ldo, b, s, cols);
    for (; m + 4 <= rows; m += 4) tile_f32<4, float>(xr + m * ldx, ldx, wp, K, o + m * ldo, ldo, b, s, cols);
    for (; m < rows; m++) tile_f32<1, float>(xr + m * ldx, ldx, wp, K, o + m * ldo, ldo, b, s, cols);
  });
}

#ifdef __AVX512BF16__
// int4: w = q * scale + min in groups of 32 inputs. Nibbles [NP][K/2][32]: the low nibbles of 32 bytes are the
// (output, k pair) lanes of outputs 0..15, the high ones of 16..31. scale and min: float16 [NP][K/32][2][32].
// A group's sum of x * q is exact in its products (bf16 holds 0..15); scale and min meet it once per group.
alignas(64) static const uint16_t NIBBLE[32] = {  // bf16 of 0..15, twice: bit 4 of an index is the other nibble's
    0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
    0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};

static inline v16 half16(const uint16_t* p) { return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }

template <int MR, typename TO>
static inline void tile_int4(const bf16* x, long ldx, const float* xsum, long lds, const uint8_t* w, const uint16_t* sm, int K,
                             TO* out, long ldo, const float* bias, int cols) {
  const __m512i table = _mm512_load_si512(NIBBLE);
  v16 acc[MR][2];
#pragma GCC unroll 8
  for (int m = 0; m < MR; m++) acc[m][0] = acc[m][1] = vset(0);
  for (int g = 0; g < K / GROUP; g++) {
    __m512 part[MR][2];
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) part[m][0] = part[m][1] = _mm512_setzero_ps();
    const uint8_t* wg = w + g * (GROUP / 2) * PANEL;
    _mm_prefetch((const char*)wg + 2048, _MM_HINT_T0);
    _mm_prefetch((const char*)wg + 2112, _MM_HINT_T0);
    _mm_prefetch((const char*)wg + 2176, _MM_HINT_T0);
    _mm_prefetch((const char*)wg + 2240, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int k = 0; k < GROUP; k += 2) {
      __m512i b = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)(wg + k / 2 * PANEL)));
      __m512bh b0 = (__m512bh)_mm512_permutexvar_epi16(b, table);
      __m512bh b1 = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(b, 4), table);
#pragma GCC unroll 8
      for (int m = 0; m < MR; m++) {
        __m512bh a = bcast_pair(x + m * ldx + g * GROUP + k);
        part[m][0] = _mm512_dpbf16_ps(part[m][0], a, b0);
        part[m][1] = _mm512_dpbf16_ps(part[m][1], a, b1);
      }
    }
    const uint16_t* s = sm + g * 2 * PANEL;
    v16 s0 = half16(s), s1 = half16(s + 16), m0 = half16(s + PANEL), m1 = half16(s + PANEL + 16);
#pragma GCC unroll 8
    for (int m = 0; m < MR; m++) {
      const float xs = xsum[m * lds + g];
      acc[m][0] += (v16)part[m][0] * s0 + m0 * xs;
      acc[m][1] += (v16)part[m][1] * s1 + m1 * xs;
    }
  }
  for (int m = 0; m < MR; m++) store_row<TO>(out + m * ldo, acc[m], bias, nullptr, cols);
}

template <typename TO>
static void linear_int4(const bf16* x, long ldx, const uint8_t* w, const uint16_t* sm, const float* bias, TO* out, long ldo,
                        int M, int N, int K) {
  const int panels = (N + PANEL - 1) / PANEL, groups = K / GROUP, chunk = 6 * 16;
  float* xsum = (float*)_mm_malloc((size_t)M * groups * 4, 64);
  for (int m = 0; m < M; m++)
    for (int g = 0; g < groups; g++) {
      const bf16* p = x + m * ldx + g * GROUP;
      xsum[(long)m * groups + g] = hsum(ld<bf16>(p) + ld<bf16>(p + 16));
    }
  parallel_for((long)(M + chunk - 1) / chunk * panels, true, [=](long i) {
    const int first = (int)(i / panels) * chunk, p = (int)(i % panels), rows = M - first < chunk ? M - first : chunk;
    const int n = p * PANEL, cols = N - n < PANEL ? N - n : PANEL;
    const float* b = bias ? bias + n : nullptr;
    const uint8_t* wp = w + (long)p * PANEL * K / 2;
    const uint16_t* sp = sm + (long)p * groups * 2 * PANEL;
    int m = 0;
#define TILE(R)                                                                                                      \
  tile_int4<R, TO>(x + (first + m) * ldx, ldx, xsum + (long)(first + m) * groups, groups, wp, sp, K,                  \
                   out + (first + m) * ldo + n, ldo, b, cols)
    for (; m + 6 <= rows; m += 6) TILE(6);
    switch (rows - m) {
      case 1: TILE(1); break;
      case 2: TILE(2); break;
      case 3: TILE(3); break;
      case 4: TILE(4); break;
      case 5: TILE(5); break;
      default: break;
    }
#undef TILE
  });
  _mm_free(xsum);
}
#endif

extern "C" {
void iso_linear_f32(const float* x, long ldx, const float* w, const float* bias, const float* scale, float* out, long ldo,
                    long M, long N, long K) {
  linear_f32<float>(x, ldx, w, bias, nullptr, out, ldo, M, N, K);
}
void iso_linear_int8_f32(const float* x, long ldx, const int8_t* w, const float* bias, const float* scale, float* out, long ldo,
                         long M, long N, long K) {
  linear_f32<int8_t>(x, ldx, w, bias, scale, out, ldo, M, N, K);
}
void iso_linear_int4_f32(const float* x, long ldx, const uint8_t* w, const float* bias, const void* scale_min, float* out, long ldo,
                         long M, long N, long K) {
  linear_f32<uint8_t>(x, ldx, w, bias, scale_min, out, ldo, M, N, K);
}
#ifdef __AVX512BF16__
void iso_linear_bf16(const bf16* x, long ldx, const bf16* w, const float* bias, const float* scale, void* out, long ldo,
                     long M, long N, long K, long out_f32) {
  if (out_f32) linear_bf16<bf16, float>(x, ldx, w, bias, nullptr, (float*)out, ldo, M, N, K);
  else linear_bf16<bf16, bf16>(x, ldx, w, bias, nullptr, (bf16*)out, ldo, M, N, K);
}
void iso_linear_int8(const bf16* x, long ldx, const int8_t* w, const float* bias, const float* scale, void* out, long ldo,
                     long M, long N, long K, long out_f32) {
  if (out_f32) linear_bf16<int8_t, float>(x, ldx, w, bias, scale, (float*)out, ldo, M, N, K);
  else linear_bf16<int8_t, bf16>(x, ldx, w, bias, scale, (bf16*)out, ldo, M, N, K);
}
void iso_linear_int4(const bf16* x, long ldx, const uint8_t* w, const float* bias, const uint16_t* scale_min, void* out, long ldo,
                     long M, long N, long K, long out_f32) {
  if (out_f32) linear_int4<float>(x, ldx, w, scale_min, bias, (float*)out, ldo, M, N, K);
  else linear_int4<bf16>(x, ldx, w, scale_min, bias, (bf16*)out, ldo, M, N, K);
}
#endif
}
