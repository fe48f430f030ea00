// Paged attention over KV blocks of 16 tokens, flash style, for prefill, decode and mixed rows in one call.
//
// Physical KV (per layer):  K float32 [B][K][D][16]     bf16 [B][K][D/2][16][2]      (16 keys side by side)
//                           V          [B][K][16][D] in both types
// Scores of 16 keys are one register, so no page is copied. Each (query, head) walks the keys in tiles of
// 64 at fixed positions from 0: its bits depend on no other row and on no chunking.
#include "pool.h"
#include "vec.h"
#include <vector>

#define BS 16
#define TILE 64   // keys per softmax update
#define MT 16     // (query, head) pairs per work item

static const v16i LANES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct Problem {
  const int32_t *table, *q_start, *q_len, *kv_len;
  long table_stride, R, N, K, D, q_stride, window;
  float scale, softcap;
  const float* sinks;
  const int32_t* floor;  // keys below are invisible to the row; null = all are visible

  int lowest(int row, int seen) const {  // key that a query after `seen` keys sees
    const int lo = window > 0 && seen > window ? seen - (int)window : 0;
    return floor && floor[row] > lo ? floor[row] : lo;
  }
};

// scores[m][0..16*NB) of NB blocks for MR rows; q is row-major [MR][D]. Few rows take several blocks at once, so that
// there are sums enough to hide an addition's latency; each sum's order stays the same.
template <int MR, int NB>
static inline void block_scores(const float* q, const float* const* k, const float* const* next, int D, float* s) {
  v16 acc[NB][MR];
#pragma GCC unroll 4
  for (int b = 0; b < NB; b++)
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++) acc[b][m] = vset(0);
  for (int d = 0; d < D; d++) {
#pragma GCC unroll 4
    for (int b = 0; b < NB; b++) {
      v16 kz = vload(k[b] + d * BS);
      _mm_prefetch((const char*)(next[b] + d * BS), _MM_HINT_T0);
#pragma GCC unroll 16
      for (int m = 0; m < MR; m++) acc[b][m] += kz * q[m * D + d];
    }
  }
  for (int b = 0; b < NB; b++)
    for (int m = 0; m < MR; m++) vstore(s + m * TILE + b * BS, acc[b][m]);
}
#ifdef __AVX512BF16__
template <int MR, int NB>
static inline void block_scores(const bf16* q, const bf16* const* k, const bf16* const* next, int D, float* s) {
  __m512 acc[NB][MR];
#pragma GCC unroll 4
  for (int b = 0; b < NB; b++)
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++) acc[b][m] = _mm512_setzero_ps();
  for (int d = 0; d < D; d += 2) {
    __m512bh kz[NB];
#pragma GCC unroll 4
    for (int b = 0; b < NB; b++) {
      kz[b] = (__m512bh)_mm512_loadu_si512(k[b] + d * BS);
      _mm_prefetch((const char*)(next[b] + d * BS), _MM_HINT_T0);
    }
#pragma GCC unroll 16
    for (int m = 0; m < MR; m++) {
      int32_t u; std::memcpy(&u, q + m * D + d, 4);
#pragma GCC unroll 4
      for (int b = 0; b < NB; b++) acc[b][m] = _mm512_dpbf16_ps(acc[b][m], (__m512bh)_mm512_set1_epi32(u), kz[b]);
    }
  }
  for (int b = 0; b < NB; b++)
    for (int m = 0; m < MR; m++) _mm512_storeu_ps(s + m * TILE + b * BS, acc[b][m]);
}
#endif

// out[m][:] += p[m][0..n) * V[n][D], for 4 rows and 64 columns at a time.
template <typename T, int MR>
static inline void block_values(const float* p, int ldp, const T* v, const T* next, int n, int D, float* o) {
  for (int d0 = 0; d0 < D; d0 += 64) {
    const int W = D - d0 < 64 ? (D - d0) / 16 : 4;
    v16 acc[MR][4];
    for (int m = 0; m < MR; m++)
      for (int j = 0; j < W; j++) acc[m][j] = vload(o + m * D + d0 + j * 16);
    if (W == 4) {
      for (int t = 0; t < n; t++) {
        for (int line = 0; line < 64 * (int)sizeof(T); line += 64) _mm_prefetch((const char*)(next + t * D + d0) + line, _MM_HINT_T0);
        v16 a = ld<T>(v + t * D + d0), b = ld<T>(v + t * D + d0 + 16), c = ld<T>(v + t * D + d0 + 32), e = ld<T>(v + t * D + d0 + 48);
#pragma GCC unroll 8
        for (int m = 0; m < MR; m++) {
          v16 w = vset(p[m * ldp + t]);
          acc[m][0] += w * a; acc[m][1] += w * b; acc[m][2] += w * c; acc[m][3] += w * e;
        }
      }
    } else {
      for (int t = 0; t < n; t++)
        for (int j = 0; j < W; j++) {
          v16 a = ld<T>(v + t * D + d0 + j * 16);
          for (int m = 0; m < MR; m++) acc[m][j] += vset(p[m * ldp + t]) * a;
        }
    }
    for (int m = 0; m < MR; m++)
      for (int j = 0; j < W; j++) vstore(o + m * D + d0 + j * 16, acc[m][j]);
  }
}

// One update of MT rows with the keys [start, start + n) of one tile; lo/hi bound each row's visible keys.
static inline void softmax_update(float* s, int rows, int start, const int* lo, const int* hi, float scale, float softcap,
                                  float* row_max, float* row_sum, float* o, int D) {
  for (int m = 0; m < rows; m++) {
    float* sm = s + m * TILE;
    v16 best = vset(-INFINITY);
    for (int j = 0; j < TILE; j += 16) {
      v16 x = vload(sm + j) * scale;
      if (softcap > 0) {  // tanh by exp: c * (1 - 2 / (exp(2x/c) + 1))
        v16 e = vexp(vmin(vmax(x * (2.0f / softcap), vset(-80.0f)), vset(80.0f)));
        x = softcap * (1.0f - 2.0f / (e + 1.0f));
      }
      v16i key = LANES + (start + j);
      v16i visible = (key >= lo[m]) & (key < hi[m]);
      x = visible ? x : vset(-INFINITY);
      vstore(sm + j, x);
      best = vmax(best, x);
    }
    float top = hmax(best);
    if (top == -INFINITY) { for (int j = 0; j < TILE; j += 16) vstore(sm + j, vset(0)); continue; }
    float now = top > row_max[m] ? top : row_max[m];
    if (now > row_max[m]) {
      float fix = row_max[m] == -INFINITY ? 0.0f : vexp(vset(row_max[m] - now))[0];
      row_sum[m] *= fix;
      for (int d = 0; d < D; d += 16) vstore(o + m * D + d, vload(o + m * D + d) * fix);
      row_max[m] = now;
    }
    v16 sum = vset(0);
    for (int j = 0; j < TILE; j += 16) {
      v16 p = vexp(vload(sm + j) - now);
      vstore(sm + j, p);
      sum += p;
    }
    row_sum[m] += hsum(sum);
  }
}

// Scores of `rows` with the blocks k[0..n); rows past the last are computed too, where that is less work than a branch.
template <typename T, int NB>
static inline void scores_of_blocks(const T* q, const T* const* k, const T* const* next, int D, int rows, float* s) {
  if (rows <= 1) block_scores<1, NB>(q, k, next, D, s);
  else if (rows <= 3) block_scores<3, NB>(q, k, next, D, s);
  else if (rows <= 4) block_scores<4, NB>(q, k, next, D, s);
  else if (rows <= 7) block_scores<7, NB>(q, k, next, D, s);
  else if (rows <= 8 || NB > 1) block_scores<8, NB>(q, k, next, D, s);
  else block_scores<MT, NB>(q, k, next, D, s);
}
template <typename T>
static inline void scores_of(const T* q, const T* const* k, const T* const* next, int n, int D, int rows, float* s) {
  if (n == 4 && rows <= 4) return scores_of_blocks<T, 4>(q, k, next, D, rows, s);
  for (; n >= 2 && rows <= 8; n -= 2, k += 2, next += 2, s += 2 * BS) scores_of_blocks<T, 2>(q, k, next, D, rows, s);
  for (int b = 0; b < n; b++) scores_of_blocks<T, 1>(q, k + b, next + b, D, rows, s + b * BS);
}
template <typename T>
static inline void values_of(const float* p, const T* v, const T* next, int n, int D, int rows, float* o) {
  int m = 0;
  for (; m + 4 <= rows; m += 4) block_values<T, 4>(p + m * TILE, TILE, v, next, n, D, o + m * D);
  const int left = rows - m;
  if (left == 3) block_values<T, 3>(p + m * TILE, TILE, v, next, n, D, o + m * D);
  if (left == 2) block_values<T, 2>(p + m * TILE, TILE, v, next, n, D, o + m * D);
  if (left == 1) block_values<T, 1>(p + m * TILE, TILE, v, next, n, D, o + m * D);
}

// The blocks of one tile, or those that the tile has not: then the first one again, whose fetch costs nothing.
template <typename T> struct Tile {
  const T *k[TILE / BS], *v[TILE / BS];
};
template <typename T>
static inline Tile<T> tile_at(const Problem& P, const T* kc, const T* vc, int r, int kh, int t0, int skip, int key_hi) {
  Tile<T> tile;
  const int32_t* table = P.table + r * P.table_stride + t0 / BS;
  for (int j = 0; j < TILE / BS; j++) {
    const long page = ((long)table[j >= skip && t0 + j * BS < key_hi ? j : skip] * P.K + kh) * P.D * BS;
    tile.k[j] = kc + page;
    tile.v[j] = vc + page;
  }
  return tile;
}

// Rows [first, first + MT) of the flattened (query, head in group) pairs of request `row`, KV head `head`.
struct Item {
  int row, head, first;

  int first_key(const Problem& P) const {  // that any of its queries sees
    return P.lowest(row, P.kv_len[row] - P.q_len[row] + first / (P.N / P.K) + 1);
  }
};

// Pages lie anywhere in memory, which no hardware prefetcher guesses: while one tile is worked on, the next one is
// fetched, be it of this item or of the one that most likely comes after it.
template <typename T>
static void attend(const Problem& P, const T* q, const T* kc, const T* vc, T* out, const Item& item, const Item& after, char* work) {
  const int r = item.row, kh = item.head, first = item.first;
  const int D = P.D, G = P.N / P.K, left_rows = P.q_len[r] * G - first, rows = left_rows < MT ? left_rows : MT;
  T* qt = (T*)work;
  float* s = (float*)(work + MT * D * sizeof(T));
  float* o = s + MT * TILE;
  float row_max[MT], row_sum[MT];
  int lo[MT], hi[MT], key_lo = INT32_MAX, key_hi = 0;
  const int base = P.kv_len[r] - P.q_len[r];
  const int width = rows <= 1 ? 1 : rows <= 4 ? 4 : rows <= 8 ? 8 : MT;  // what the score kernels may touch
  for (int m = 0; m < width; m++) {
    int i = first + (m < rows ? m : rows - 1), query = i / G, head = kh * G + i % G;
    std::memcpy(qt + m * D, q + (P.q_start[r] + query) * P.q_stride + head * D, D * sizeof(T));
    hi[m] = base + query + 1;
    lo[m] = P.lowest(r, hi[m]);
    if (lo[m] < key_lo) key_lo = lo[m];
    if (hi[m] > key_hi) key_hi = hi[m];
    row_max[m] = P.sinks ? P.sinks[head] : -INFINITY;
    row_sum[m] = P.sinks ? 1.0f : 0.0f;
  }
  for (int i = 0; i < width * D; i += 16) vstore(o + i, vset(0));
  int t0 = key_lo / TILE * TILE, skip = (key_lo - t0) / BS;  // blocks wholly before every window may be gone
  Tile<T> tile = tile_at(P, kc, vc, r, kh, t0, skip, key_hi);
  while (t0 < key_hi) {
    const int n = key_hi - t0 < TILE ? key_hi - t0 : TILE, blocks = (n + BS - 1) / BS;
    const int next_key = t0 + TILE < key_hi ? t0 + TILE : after.first_key(P), next_t0 = next_key / TILE * TILE;
    const bool same = t0 + TILE < key_hi;
    const Tile<T> next = same ? tile_at(P, kc, vc, r, kh, next_t0, 0, key_hi)
                              : tile_at(P, kc, vc, after.row, after.head, next_t0, (next_key - next_t0) / BS, P.kv_len[after.row]);
    scores_of<T>(qt, tile.k + skip, next.k + skip, blocks - skip, D, rows, s + skip * BS);
    softmax_update(s, rows, t0, lo, hi, P.scale, P.softcap, row_max, row_sum, o, D);
    for (int j = skip; j < blocks; j++) {
      const int first_key = t0 + j * BS, from = key_lo > first_key ? key_lo - first_key : 0, left = n - j * BS;
      values_of<T>(s + j * BS + from, tile.v[j] + from * D, next.v[j] + from * D, (left < BS ? left : BS) - from, D, rows, o);
    }
    tile = next;
    t0 += TILE;
    skip = 0;
  }
  for (int m = 0; m < rows; m++) {
    int i = first + m, query = i / G, head = kh * G + i % G;
    float inv = row_sum[m] > 0 ? 1.0f / row_sum[m] : 0.0f;
    T* dst = out + ((P.q_start[r] + query) * P.N + head) * D;
    for (int d = 0; d < D; d += 16) st<T>(dst + d, vload(o + m * D + d) * inv);
  }
}

template <typename T>
static void paged_attention(const Problem& P, const T* q, const T* kc, const T* vc, T* out) {
  const int G = P.N / P.K;
  std::vector<Item> items;
  for (int r = 0; r < P.R; r++)
    for (int first = (P.q_len[r] * G - 1) / MT * MT; first >= 0; first -= MT)  // late tiles are the long ones
      for (int kh = 0; kh < P.K; kh++) items.push_back({r, kh, first});
  const size_t bytes = MT * P.D * (sizeof(T) + 4) + MT * TILE * 4;
  const Item* list = items.data();
  const long count = (long)items.size(), team = Pool::get().size();
  parallel_for(count, true, [&P, q, kc, vc, out, list, bytes, count, team](long i) {
    attend<T>(P, q, kc, vc, out, list[i], list[i + team < count ? i + team : i], scratch(bytes));
  });
}

template <typename T>
static void kv_write(const T* k, long k_stride, const T* v, long v_stride, const int32_t* slots, T* kc, T* vc, int T_, int K, int D) {
  const int pack = sizeof(T) == 2 ? 2 : 1;
  parallel_for(T_, T_ > 8, [=](long t) {
    for (int h = 0; h < K; h++) {
      const long block = slots[t] / BS, off = slots[t] % BS;
      T* kd = kc + (block * K + h) * D * BS;
      const T* ks = k + t * k_stride + h * D;
      for (int d = 0; d < D; d++) kd[(d / pack * BS + off) * pack + d % pack] = ks[d];
      std::memcpy(vc + ((block * K + h) * BS + off) * D, v + t * v_stride + h * D, D * sizeof(T));
    }
  });
}

// Copies positions [first, first + count) of each row out of its ring, [rings][S][K][D] with position p at p % S, into
// blocks, as kv_write lays them; position p goes to slot base + p.
template <typename T>
static void ring_gather(const T* k, const T* v, const int32_t* ring, const int32_t* first, const int32_t* count,
                        const int32_t* base, T* kc, T* vc, long R, long S, int K, int D) {
  const int pack = sizeof(T) == 2 ? 2 : 1;
  parallel_for(R * K, R * K > 1, [=](long i) {
    const long r = i / K, h = i % K;
    for (long p = first[r]; p < (long)first[r] + count[r]; p++) {
      const long source = ((ring[r] * S + p % S) * K + h) * D, slot = base[r] + p;
      const long block = slot / BS * K + h, off = slot % BS;
      T* kd = kc + block * D * BS;
      for (int d = 0; d < D; d++) kd[(d / pack * BS + off) * pack + d % pack] = k[source + d];
      std::memcpy(vc + (block * BS + off) * D, v + source, D * sizeof(T));
    }
  });
}

template <typename T>
static void rope(T* x, long stride, const int32_t* pos, const float* table, int T_, int H, int D, int rotary, int interleaved) {
  parallel_for(T_, T_ > 8, [=](long t) {
    const float *c = table + (long)pos[t] * rotary, *s = c + rotary / 2;
    for (int h = 0; h < H; h++) {
      T* p = x + t * stride + h * D;
      int i = 0;
      for (; !interleaved && i + 16 <= rotary / 2; i += 16) {
        T *a = p + i, *b = a + rotary / 2;
        const v16 u = ld<T>(a), w = ld<T>(b), ci = vload(c + i), si = vload(s + i);
        st<T>(a, u * ci - w * si);
        st<T>(b, w * ci + u * si);
      }
      for (; i < rotary / 2; i++) {
        const int a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + rotary / 2;
        const float u = IO<T>::get(p[a]), w = IO<T>::get(p[b]);
        p[a] = IO<T>::put(u * c[i] - w * s[i]);
        p[b] = IO<T>::put(w * c[i] + u * s[i]);
      }
    }
  });
}

#define ENTRY(NAME, T)                                                                                                    \
  void iso_attention_##NAME(const T* q, long q_stride, const T* kc, const T* vc, const int32_t* table, long table_stride,  \
                            const int32_t* q_start, const int32_t* q_len, const int32_t* kv_len, const int32_t* floor,     \
                            long R, long N, long K, long D, double scale, long window, double softcap,                     \
                            const float* sinks, T* out) {                                                                  \
    Problem P{table, q_start, q_len, kv_len, table_stride, R, N, K, D, q_stride, window, (float)scale, (float)softcap,      \
              sinks, floor};                                                                                               \
    paged_attention<T>(P, q, kc, vc, out);                                                                                \
  }                                                                                                                       \
  void iso_kv_write_##NAME(const T* k, long ks, const T* v, long vs, const int32_t* slots, T* kc, T* vc, long T_, long K, long D) { \
    kv_write<T>(k, ks, v, vs, slots, kc, vc, T_, K, D);                                                                   \
  }                                                                                                                       \
  void iso_ring_gather_##NAME(const T* k, const T* v, const int32_t* ring, const int32_t* first, const int32_t* count,    \
                              const int32_t* base, T* kc, T* vc, long R, long S, long K, long D) {                        \
    ring_gather<T>(k, v, ring, first, count, base, kc, vc, R, S, K, D);                                                   \
  }                                                                                                                       \
  void iso_rope_##NAME(T* q, long qs, T* k, long ks, const int32_t* pos, const float* table, long T_, long N, long K,      \
                       long D, long rotary, long interleaved) {                                                           \
    rope<T>(q, qs, pos, table, T_, N, D, rotary, interleaved);                                                            \
    rope<T>(k, ks, pos, table, T_, K, D, rotary, interleaved);                                                            \
  }                                                                                                                       \
  void iso_rope_kv_write_##NAME(T* q, long qs, T* k, long ks, const T* v, long vs, const int32_t* pos, const float* table, \
                                const int32_t* slots, T* kc, T* vc, long T_, long N, long K, long D, long rotary,         \
                                long interleaved) {                                                                       \
    rope<T>(q, qs, pos, table, T_, N, D, rotary, interleaved);                                                            \
    rope<T>(k, ks, pos, table, T_, K, D, rotary, interleaved);                                                            \
    kv_write<T>(k, ks, v, vs, slots, kc, vc, T_, K, D);                                                                   \
  }

extern "C" {
ENTRY(f32, float)
#ifdef __AVX512BF16__
ENTRY(bf16, bf16)
#endif
}
