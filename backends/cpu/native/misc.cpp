// Norms, activations and greedy sampling, and the list of what this build can do.
#include "pool.h"
#include "vec.h"
#include <malloc.h>

template <typename T>
static void rms_norm(const T* x, long xs, T* residual, long rs, const T* w, T* out, long os, int rows, int H, float eps) {
  parallel_for(rows, (long)rows * H > 8192, [=](long r) {
    const T* xr = x + r * xs;
    T* rr = residual ? residual + r * rs : nullptr;
    T* o = out + r * os;
    v16 acc = vset(0);
    float tail = 0;
    int i = 0;
    for (; i + 16 <= H; i += 16) {
      v16 v = ld<T>(xr + i);
      if (rr) {
        st<T>(rr + i, v + ld<T>(rr + i));
        v = ld<T>(rr + i);
      }
      acc += v * v;
    }
    for (; i < H; i++) {
      float v = IO<T>::get(xr[i]);
      if (rr) { rr[i] = IO<T>::put(v + IO<T>::get(rr[i])); v = IO<T>::get(rr[i]); }
      tail += v * v;
    }
    const float scale = 1.0f / std::sqrt((hsum(acc) + tail) / H + eps);
    const T* src = rr ? rr : xr;
    for (i = 0; i + 16 <= H; i += 16) st<T>(o + i, ld<T>(src + i) * scale * ld<T>(w + i));
    for (; i < H; i++) o[i] = IO<T>::put(IO<T>::get(src[i]) * scale * IO<T>::get(w[i]));
  });
}

static inline v16 sigmoid(v16 x) { return 1.0f / (1.0f + vexp(-x)); }

template <typename T, int CLIPPED>
static void gated(const T* x, long xs, T* out, int rows, int I, float alpha, float limit) {
  parallel_for(rows, (long)rows * I > 8192, [=](long r) {
    const T *g = x + r * xs, *u = g + I;
    T* o = out + (long)r * I;
    for (int i = 0; i < I; i += 16) {
      const int left = I - i;
      v16 a = vset(0), b = vset(0);
      if (left >= 16) { a = ld<T>(g + i); b = ld<T>(u + i); }
      else for (int j = 0; j < left; j++) { a[j] = IO<T>::get(g[i + j]); b[j] = IO<T>::get(u[i + j]); }
      v16 y;
      if (CLIPPED) {
        a = vmin(a, vset(limit));
        b = vmin(vmax(b, vset(-limit)), vset(limit));
        y = (b + 1.0f) * a * sigmoid(alpha * a);
      } else {
        y = a * sigmoid(a) * b;
      }
      if (left >= 16) st<T>(o + i, y);
      else for (int j = 0; j < left; j++) o[i + j] = IO<T>::put(y[j]);
    }
  });
}

#define ENTRY(NAME, T)                                                                                                  \
  void iso_rms_norm_##NAME(const T* x, long xs, const T* w, T* out, long os, long rows, long H, double eps) {            \
    rms_norm<T>(x, xs, nullptr, 0, w, out, os, rows, H, (float)eps);                                                    \
  }                                                                                                                     \
  void iso_add_rms_norm_##NAME(const T* x, long xs, T* res, long rs, const T* w, T* out, long rows, long H, double eps) { \
    rms_norm<T>(x, xs, res, rs, w, out, H, rows, H, (float)eps);                                                        \
  }                                                                                                                     \
  void iso_silu_mul_##NAME(const T* x, long xs, T* out, long rows, long I) { gated<T, 0>(x, xs, out, rows, I, 0, 0); }   \
  void iso_swiglu_clipped_##NAME(const T* x, long xs, T* out, long rows, long I, double alpha, double limit) {           \
    gated<T, 1>(x, xs, out, rows, I, (float)alpha, (float)limit);                                                       \
  }

extern "C" {
ENTRY(f32, float)
#ifdef __AVX512BF16__
ENTRY(bf16, bf16)
#endif

void iso_argmax(const float* x, long stride, int32_t* out, long R, long V) {
  parallel_for(R, true, [=](long r) {
    const float* p = x + r * stride;
    v16 best = vset(-INFINITY);
    long i = 0;
    for (; i + 16 <= V; i += 16) best = vmax(best, vload(p + i));
    float top = hmax(best);
    for (; i < V; i++) top = p[i] > top ? p[i] : top;
    long at = 0;
    for (; at + 16 <= V; at += 16) {  // skip vectors without it
      v16 x = vload(p + at);
      if (hmax(x) >= top) break;
    }
    while (at < V && p[at] != top) at++;
    out[r] = at < V ? at : 0;
  });
}

// Threads of the team, this one included.
void iso_set_threads(long threads) { Pool::get().resize((int)threads); }

// Keep freed memory: a step's activations are megabytes, and giving them back to the system after every op
// means faulting in fresh pages for the next one.
void iso_keep_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
}

// bit 0: bf16 kernels are in this build
long iso_features() {
#ifdef __AVX512BF16__
  return 1;
#else
  return 0;
#endif
}
}
