// Coupled acceptance of drafts, the token history, prompt lookup, and what is left of a host's prediction.
#include "pool.h"
#include <algorithm>

// How many of the last tokens of two contexts, given by their ends, are equal, up to limit.
static long common_suffix(const int32_t* a, const int32_t* b, long limit) {
  long n = 0;
  while (n < limit && a[-1 - n] == b[-1 - n]) n++;
  return n;
}

// Where the longest suffix of low to high tokens also ends, of several the latest; length if nowhere.
static long earlier_end(const int32_t* context, long length, long low, long high) {
  long best = low - 1, found = length;
  for (long end = length - 1; end > best && best < high; end--) {
    if (context[end - 1] != context[length - 1]) continue;
    const long same = common_suffix(context + end, context + length, std::min(end, high));
    if (same > best) { best = same; found = end; }
  }
  return found;
}

extern "C" {
void iso_verify(const int32_t* token, const int32_t* input, const int32_t* rows, const int32_t* start, int32_t* emitted,
                int32_t* accepted, int32_t* rejected, int32_t* last, long G, long K) {
  for (long g = 0; g < G; g++) {
    const long first = start[g], drafts = start[g + 1] - first - 1;
    long a = 0;
    while (a < drafts && input[rows[first + a] + 1] == token[first + a]) a++;
    int32_t* out = emitted + g * (K + 1);
    std::copy_n(token + first, a + 1, out);
    std::fill(out + a + 1, out + K + 1, 0);
    accepted[g] = a;
    rejected[g] = drafts - a;
    last[g] = out[a];
  }
}

void iso_append_history(int32_t* history, long stride, long L, const int32_t* slot, const int32_t* length,
                        const int32_t* token, long token_stride, const int32_t* count, long G) {
  for (long g = 0; g < G; g++) {
    const long room = std::max(0L, L - length[g]);
    std::copy_n(token + g * token_stride, std::min<long>(count[g], room), history + slot[g] * stride + length[g]);
  }
}

void iso_propose_ngram(const int32_t* history, long stride, long L, const int32_t* slot, const int32_t* lengths,
                       int32_t* drafts, int32_t* found, long G, long K, long low, long high) {
  parallel_for(G, G * L > 8192, [=](long g) {
    const int32_t* context = history + slot[g] * stride;
    const long length = std::min<long>(lengths[g], L);
    const long end = earlier_end(context, length, low, high), n = std::min(K, length - end);
    std::copy_n(context + end, n, drafts + g * K);
    std::fill_n(drafts + g * K + n, K - n, 0);
    found[g] = n;
  });
}

void iso_consume_drafts(const int32_t* predicted, long stride, const int32_t* count, const int32_t* token,
                        long token_stride, const int32_t* accepted, const int32_t* own, long own_stride,
                        const int32_t* own_found, int32_t* drafts, int32_t* found, long G, long K) {
  for (long g = 0; g < G; g++) {
    const int32_t *expected = predicted + g * stride, *emitted = token + g * token_stride;
    const long n = accepted[g] + 1, left = std::min(K, count[g] - n);
    if (left > 0 && std::equal(emitted, emitted + n, expected)) {
      std::copy_n(expected + n, left, drafts + g * K);
      std::fill_n(drafts + g * K + left, K - left, 0);
      found[g] = left;
    } else {
      std::copy_n(own + g * own_stride, K, drafts + g * K);
      found[g] = own_found[g];
    }
  }
}
}
