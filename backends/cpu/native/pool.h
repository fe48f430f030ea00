// A team of threads for the kernels. Why not OpenMP: its threads spin for milliseconds at every barrier, and one
// other busy process on the machine then slows a step tenfold. Here work is taken piece by piece from a counter,
// a worker that is not running when a job ends is not waited for, and spinning is bounded to some 50 us.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <immintrin.h>
#include <mutex>
#include <thread>

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = new Pool;  // never destroyed: workers may still sleep in it at exit
    return *pool;
  }

  void resize(int threads) {
    std::lock_guard<std::mutex> lock(busy_);
    limit_.store(threads - 1);
    for (; started_ < threads - 1; started_++) std::thread(&Pool::work, this, started_).detach();
  }

  int size() const { return limit_.load(std::memory_order_relaxed) + 1; }

  // f(i) for 0 <= i < n, in any order, on this thread and those workers that come in time.
  template <typename F> void run(long n, F&& f) {
    if (n <= 1 || limit_.load(std::memory_order_relaxed) == 0 || !busy_.try_lock()) {
      for (long i = 0; i < n; i++) f(i);
      return;
    }
    fn_ = [](void* arg, long i) { (*static_cast<std::remove_reference_t<F>*>(arg))(i); };
    arg_ = &f;
    n_ = n;
    next_.store(0, std::memory_order_relaxed);
    left_.store(0, std::memory_order_relaxed);
    ticket_.store(uint64_t(++epoch_) << 32, std::memory_order_release);  // open, nobody joined
    wake_.store(epoch_, std::memory_order_release);
    wake_.notify_all();
    drain();
    const uint32_t joined = uint32_t(ticket_.fetch_or(CLOSED, std::memory_order_acq_rel)) & ~uint32_t(CLOSED);
    wait(left_, [joined](uint32_t left) { return left == joined; });
    busy_.unlock();
  }

 private:
  static constexpr uint64_t CLOSED = 1u << 31;
  static constexpr int SPINS = 2000;

  template <typename P> static void wait(std::atomic<uint32_t>& value, P done) {
    for (uint32_t seen;;) {
      for (int i = 0; i < SPINS; i++) {
        if (done(seen = value.load(std::memory_order_acquire))) return;
        _mm_pause();
      }
      value.wait(seen, std::memory_order_acquire);
    }
  }

  void drain() {
    for (long i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) fn_(arg_, i);
  }

  bool join(uint32_t epoch) {
    uint64_t seen = ticket_.load(std::memory_order_acquire);
    do {
      if (uint32_t(seen >> 32) != epoch || (seen & CLOSED)) return false;
    } while (!ticket_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel));
    return true;
  }

  void work(int index) {
    for (uint32_t last = 0;;) {
      wait(wake_, [last](uint32_t now) { return now != last; });
      last = wake_.load(std::memory_order_acquire);
      if (index >= limit_.load(std::memory_order_relaxed) || !join(last)) continue;
      drain();
      left_.fetch_add(1, std::memory_order_acq_rel);
      left_.notify_one();
    }
  }

  void (*fn_)(void*, long) = nullptr;
  void* arg_ = nullptr;
  long n_ = 0;
  int started_ = 0;
  uint32_t epoch_ = 0;
  std::atomic<int> limit_{0};
  std::atomic<long> next_{0};
  std::atomic<uint64_t> ticket_{CLOSED};  // epoch, closed bit, workers that joined
  std::atomic<uint32_t> wake_{0}, left_{0};
  std::mutex busy_;
};

// f(i) for 0 <= i < n; small jobs (`parallel` false) stay on this thread.
template <typename F> static inline void parallel_for(long n, bool parallel, F&& f) {
  if (parallel) Pool::get().run(n, f);
  else for (long i = 0; i < n; i++) f(i);
}

// Memory of this thread, kept from call to call; 64-byte aligned, contents undefined.
static inline char* scratch(size_t bytes) {
  struct Block {
    char* data = nullptr;
    size_t size = 0;
    ~Block() { std::free(data); }
  };
  static thread_local Block block;
  if (block.size < bytes) {
    std::free(block.data);
    block.size = (bytes + 63) / 64 * 64;
    block.data = static_cast<char*>(std::aligned_alloc(64, block.size));
  }
  return block.data;
}
