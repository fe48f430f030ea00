// Sampling of whole logit rows: top-k, min-p, top-p, then the best of logits / T + Gumbel noise; and the classical
// acceptance of drafts, which takes them with their probability among what is kept.
//
// The noise of (seed, position, stream, token) is Philox4x32-10 (Salmon et al., SC 2011), so a row's token depends on
// no other row. Noise is at most 17: tokens that cannot win any more are skipped without computing theirs.
#include "pool.h"
#include "vec.h"
#include <algorithm>
#include <cfloat>
#include <vector>

static inline void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
  for (int i = 0; i < 10; i++) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    const uint32_t n0 = uint32_t(b >> 32) ^ c[1] ^ k0, n2 = uint32_t(a >> 32) ^ c[3] ^ k1;
    c[1] = uint32_t(b); c[3] = uint32_t(a); c[0] = n0; c[2] = n2;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
}

enum Stream { SAMPLE = 0, RESIDUAL = 1, ACCEPT = 2 };  // ops/philox.py

static inline float uniform(uint64_t seed, int32_t position, Stream stream, int32_t token) {
  uint32_t c[4] = {uint32_t(token) / 4, uint32_t(position), stream, 0};
  philox(c, uint32_t(seed), uint32_t(seed >> 32));
  return (float(c[token % 4] >> 9) + 0.5f) * 1.1920928955078125e-7f;
}

static inline float gumbel(uint64_t seed, int32_t position, Stream stream, int32_t token) {
  return -std::log(-std::log(uniform(seed, position, stream, token)));
}

// Smallest set of the largest p (ties: lower index first) whose sum reaches target; order holds candidates.
static size_t nucleus(std::vector<int32_t>& order, const float* p, double target) {
  auto before = [p](int32_t a, int32_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); };
  size_t done = 0, want = 256;
  double sum = 0;
  while (done < order.size()) {
    const size_t end = std::min(want, order.size());
    if (end < order.size()) std::nth_element(order.begin() + done, order.begin() + end, order.end(), before);
    std::sort(order.begin() + done, order.begin() + end, before);
    for (; done < end; done++) {
      sum += p[order[done]];
      if (sum >= target) return done + 1;
    }
    want *= 4;
  }
  return order.size();
}

// How each row is sampled.
struct Choice {
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  const int64_t* seed;
  const int32_t* position;
};

// A row's logits / T, the tokens that are kept, in any order, and the largest logit.
struct Kept {
  std::vector<float> x;
  std::vector<int32_t> order;
  float top;

  void filter(const float* logits, long V, const Choice& choice, long r) {
    const float temperature = choice.temperature[r], top_p = choice.top_p[r], min_p = choice.min_p[r];
    const long top_k = choice.top_k[r];
    top = -INFINITY;
    x.resize(V);
    order.clear();
    for (long i = 0; i < V; i++) {
      const float v = logits[i] / temperature;
      x[i] = v <= FLT_MAX ? v : v == v ? FLT_MAX : -INFINITY;  // a NaN among them would break the order of sorts
      top = x[i] > top ? x[i] : top;
    }
    if (!(top > -INFINITY)) return;
    float least = -INFINITY;
    if (top_k > 0 && top_k < V) {
      std::vector<float> copy(x);
      std::nth_element(copy.begin(), copy.begin() + (top_k - 1), copy.end(), std::greater<float>());
      least = copy[top_k - 1];
    }
    for (long i = 0; i < V; i++)
      if (x[i] >= least && x[i] > -INFINITY && (min_p <= 0 || std::exp(x[i] - top) >= min_p)) order.push_back(i);
    if (top_p < 1) {
      std::vector<float> p(V);
      double total = 0;
      for (int32_t i : order) total += p[i] = std::exp(x[i] - top);
      order.resize(std::max<size_t>(1, nucleus(order, p.data(), top_p * total)));
    }
  }

  // The best of the kept tokens but one, with noise.
  int32_t draw(uint64_t seed, int32_t position, Stream stream, int32_t without = -1) const {
    int32_t best_token = -1;
    float best = -INFINITY;
    for (int32_t i : order) {
      if (i == without || x[i] + 17.5f < best) continue;
      const float score = x[i] + gumbel(seed, position, stream, i);
      if (score > best || (score == best && i < best_token)) { best = score; best_token = i; }
    }
    return best_token < 0 ? 0 : best_token;
  }

  double probability(int32_t token) const {
    double total = 0, own = 0;
    for (int32_t i : order) {
      const double p = std::exp(x[i] - top);
      total += p;
      if (i == token) own = p;
    }
    return total > 0 ? own / total : 0;
  }
};

static Kept& kept_of_this_thread() {
  static thread_local Kept kept;
  return kept;
}

// The token in place of `draft`, or -1 where it is accepted.
static int32_t replacement(const float* logits, long V, const Choice& choice, long place, int32_t token, int32_t draft) {
  if (choice.temperature[place] == 0) return draft == token ? -1 : token;
  Kept& kept = kept_of_this_thread();
  const uint64_t seed = choice.seed[place];
  const int32_t position = choice.position[place];
  kept.filter(logits, V, choice, place);
  if (uniform(seed, position, ACCEPT, 0) < kept.probability(draft)) return -1;
  return kept.draw(seed, position, RESIDUAL, draft);
}

// The X best of a row, best first, ties by lower index. Only values above the X-th best so far are looked at singly.
static void best_of_row(const float* x, long V, long X, int32_t* ids, float* values) {
  long have = 0;
  float least = -INFINITY;
  for (long i = 0; i < V; i += 16) {
    const long n = std::min<long>(16, V - i);
    if (have == X && n == 16 && hmax(vload(x + i)) <= least) continue;
    for (long j = i; j < i + n; j++) {
      if (have == X && !(x[j] > least)) continue;
      long at = have < X ? have++ : X - 1;
      for (; at > 0 && x[j] > values[at - 1]; at--) { values[at] = values[at - 1]; ids[at] = ids[at - 1]; }
      values[at] = x[j];
      ids[at] = (int32_t)j;
      least = values[have - 1];
    }
  }
}

static void logprobs_row(const float* x, long V, long X, int32_t token, float* logprob, int32_t* rank, int32_t* ids, float* best) {
  v16 top = vset(-INFINITY);
  long i = 0;
  for (; i + 16 <= V; i += 16) top = vmax(top, vload(x + i));
  float most = hmax(top);
  for (; i < V; i++) most = std::max(most, x[i]);
  const float own = x[token];
  double sum = 0;
  long above = 0;
  for (i = 0; i + 16 <= V; i += 16) {
    const v16 row = vload(x + i);
    sum += hsum(vexp(row - most));
    const v16i greater = row > own;
    for (int j = 0; j < 16; j++) above -= greater[j];
  }
  for (; i < V; i++) { sum += std::exp(x[i] - most); above += x[i] > own; }
  const float norm = most + (float)std::log(sum);
  *logprob = own - norm;
  *rank = (int32_t)above + 1;
  if (X > 0) best_of_row(x, V, X, ids, best);
  for (long k = 0; k < X; k++) best[k] -= norm;
}

extern "C" {
void iso_logprobs(const float* logits, long stride, const int32_t* token, float* logprob, int32_t* rank, int32_t* ids,
                  float* best, long R, long V, long X) {
  parallel_for(R, true, [=](long r) {
    logprobs_row(logits + r * stride, V, X, token[r], logprob + r, rank + r, ids + r * X, best + r * X);
  });
}
void iso_argmax(const float* x, long stride, int32_t* out, long R, long V);

void iso_sample(const float* logits, long stride, const float* temperature, const int32_t* top_k, const float* top_p,
                const float* min_p, const int64_t* seed, const int32_t* position, int32_t* out, long R, long V) {
  const Choice choice = {temperature, top_k, top_p, min_p, seed, position};
  parallel_for(R, true, [=](long r) {
    if (temperature[r] == 0) return;
    Kept& kept = kept_of_this_thread();
    kept.filter(logits + r * stride, V, choice, r);
    out[r] = kept.draw(seed[r], position[r], SAMPLE);
  });
  for (long r = 0; r < R; r++)
    if (temperature[r] == 0) iso_argmax(logits + r * stride, stride, out + r, 1, V);
}

void iso_verify_rejection(const int32_t* token, const int32_t* input, const int32_t* rows, const int32_t* start,
                          const float* logits, long stride, const float* temperature, const int32_t* top_k,
                          const float* top_p, const float* min_p, const int64_t* seed, const int32_t* position,
                          int32_t* emitted, int32_t* accepted, int32_t* rejected, int32_t* last, long G, long K, long V) {
  const Choice choice = {temperature, top_k, top_p, min_p, seed, position};
  parallel_for(G, true, [=](long g) {
    int32_t* out = emitted + g * (K + 1);
    std::fill_n(out, K + 1, 0);
    const long first = start[g], drafts = start[g + 1] - first - 1;
    int32_t other = -1;
    long a = 0;
    for (; a < drafts; a++) {
      const int32_t draft = input[rows[first + a] + 1];
      other = replacement(logits + (first + a) * stride, V, choice, first + a, token[first + a], draft);
      if (other >= 0) break;
      out[a] = draft;
    }
    last[g] = out[a] = a < drafts ? other : token[first + a];
    accepted[g] = a;
    rejected[g] = drafts - a;
  });
}
}
