// What generated kernels need to run on a host, one thread of a block after another. Of inline
// assembly it knows max, min and what warps multiply with: mma.sync, ldmatrix, cp.async. Every
// buffer is a separate allocation, so that a sanitizer sees accesses beyond it. Shared memory holds
// NaN before each block, and so does what an asynchronous copy will overwrite, from its beginning
// until somebody waits for it. Threads that meet at different barriers end the program.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

using std::max;
using std::min;
#define __device__
#define __constant__ static
#define __global__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("emu_shared")))
__attribute__((used)) static int emu_first[1] __attribute__((section("emu_shared")));
extern char __start_emu_shared, __stop_emu_shared;

struct Dim {
  unsigned x, y, z;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

// A thread: what it waits for, -1 if for nothing.
enum { RUNS = -1, DONE = -2, BLOCK = 1 << 20 };
// A copy to dynamic shared memory that has begun, of which so many bytes exist.
struct Copy {
  uint32_t to;
  const char* from;
  int bytes, exist;
};
struct Fiber {
  ucontext_t context;
  char* stack;
  int waits;
  unsigned long long slot;
  uint32_t words[6];                        // what a multiplication takes
  std::vector<Copy> begun;                  // copies that belong to no group yet
  std::vector<std::vector<Copy>> on_their_way;  // groups of copies, the oldest first
};
static Fiber fibers[1024];
static ucontext_t scheduler;
static int current;
static std::function<void()> body;
// Dynamic shared memory.
static unsigned char* emu_dynamic;
static size_t emu_dynamic_bytes;
static void dynamic_bytes(const size_t bytes) {
  std::free(emu_dynamic);
  emu_dynamic = (unsigned char*)std::aligned_alloc(16, emu_dynamic_bytes = bytes);
}

static void meet(int what) {
  const int self = current;
  fibers[self].waits = what;
  swapcontext(&fibers[self].context, &scheduler);
}
static void __syncthreads() { meet(BLOCK); }
static void __syncwarp() { meet(current / 32); }

template <typename T>
static T exchange(const T x, const int from) {
  unsigned long long bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  fibers[current].slot = bits;
  __syncwarp();
  bits = fibers[from].slot;
  __syncwarp();
  T y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}
template <typename T>
static T __shfl_up_sync(unsigned, const T x, const unsigned d) {
  return exchange(x, current % 32 >= (int)d ? current - (int)d : current);
}
template <typename T>
static T __shfl_sync(unsigned, const T x, const int from) {
  return exchange(x, current / 32 * 32 + from);
}
template <typename T>
static T __shfl_xor_sync(unsigned, const T x, const int d) {
  return exchange(x, current ^ d);
}

static void enter() {
  body();
  fibers[current].waits = DONE;
  swapcontext(&fibers[current].context, &scheduler);
}

static void run_thread(const int t) {
  current = t;
  threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
  swapcontext(&scheduler, &fibers[t].context);
}

static void run_block(const int threads, const bool backwards) {
  std::memset(&__start_emu_shared, 0xff, &__stop_emu_shared - &__start_emu_shared);
  if (emu_dynamic) std::memset(emu_dynamic, 0xff, emu_dynamic_bytes);
  for (int t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    constexpr size_t STACK = 1 << 17;
    if (!f.stack) f.stack = (char*)std::malloc(STACK);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, enter, 0);
    f.waits = RUNS;
    f.begun.clear();
    f.on_their_way.clear();
  }
  // Each warp runs as far as it can before the next one, so that work that no barrier orders runs
  // in the least expected order.
  const int warps = (threads + 31) / 32;
  for (;;) {
    int done = 0, at_block = 0;
    for (int w = 0; w < warps; ++w) {
      const int first = (backwards ? warps - 1 - w : w) * 32, end = std::min(first + 32, threads);
      for (bool released = true; released;) {
        for (int i = first; i < end; ++i) {
          const int t = backwards ? first + end - 1 - i : i;
          if (fibers[t].waits == RUNS) run_thread(t);
        }
        // Lanes that share a row exchange values while those without one have ended, or wait for
        // the block.
        const auto waits = [&](const Fiber& f) { return f.waits == first / 32; };
        const auto rests = [&](const Fiber& f) { return waits(f) || f.waits == DONE || f.waits == BLOCK; };
        released = std::any_of(fibers + first, fibers + end, waits) && std::all_of(fibers + first, fibers + end, rests);
        if (released) std::for_each(fibers + first, fibers + end, [&](Fiber& f) { if (waits(f)) f.waits = RUNS; });
      }
    }
    for (int t = 0; t < threads; ++t) done += fibers[t].waits == DONE, at_block += fibers[t].waits == BLOCK;
    if (done == threads) return;
    if (at_block != threads) {
      std::fprintf(stderr, "threads of a block wait at different barriers\n");
      std::abort();
    }
    for (int t = 0; t < threads; ++t) fibers[t].waits = RUNS;
  }
}

template <typename F>
static void launch(const Dim grid, const Dim block, const F kernel) {
  static int count = 0;
  const bool backwards = ++count % 2 == 0;
  gridDim = grid;
  blockDim = block;
  body = kernel;
  const long long blocks = (long long)grid.x * grid.y * grid.z;
  for (long long b = 0; b < blocks; ++b) {
    const long long at = backwards ? blocks - 1 - b : b;
    blockIdx = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
    run_block(block.x * block.y * block.z, backwards);
  }
}

// Memory of any type.
struct Memory {
  void* at;
  template <typename T>
  operator T*() const {
    return static_cast<T*>(at);
  }
};

struct float2 {
  float x, y;
};
static float2 make_float2(const float x, const float y) { return {x, y}; }
struct int2 {
  int x, y;
};
[[maybe_unused]] static int2 make_int2(const int x, const int y) { return {x, y}; }
struct int4 {
  int x, y, z, w;
};

// Narrow floats.
struct __half {
  uint16_t bits;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
static float __half2float(const __half h) {
  const int e = h.bits >> 10 & 31, m = h.bits & 1023;
  const float v = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
  return h.bits >> 15 ? -v : v;
}
static __half __double2half(const double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return {0x7e00};
  const double a = std::fabs(x);
  if (a >= 65520) return {(uint16_t)(sign | 0x7c00)};
  int e = 0;
  std::frexp(a, &e);
  const int unit = std::max(e - 11, -24);  // the exponent of the last bit
  const double units = std::nearbyint(std::ldexp(a, -unit));
  const double whole = std::ldexp(units, unit);
  if (whole == 0) return {sign};
  std::frexp(whole, &e);
  const int last = std::max(e - 11, -24);
  const unsigned bits = (unsigned)std::ldexp(whole, -last);
  return {(uint16_t)(sign | (bits < 1024 ? bits : (unsigned)(e + 14) << 10 | (bits & 1023)))};
}
static __half __float2half_rn(const float x) { return __double2half(x); }
static float __bfloat162float(const __nv_bfloat16 h) {
  const uint32_t bits = (uint32_t)h.bits << 16;
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}
static __nv_bfloat16 __double2bfloat16(const double x) {
  if (std::isnan(x)) return {0x7fc0};
  // Round to odd in f32, then to even: as if rounded once.
  float f = (float)x;
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((double)f != x && !std::isinf(f)) {
    if (std::fabs((double)f) > std::fabs(x)) --bits;
    bits |= 1;
  }
  return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
static __nv_bfloat16 __float2bfloat16_rn(const float x) { return __double2bfloat16(x); }
static unsigned __float_as_uint(const float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
static float __uint_as_float(const unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
static long long __double_as_longlong(const double x) {
  long long bits;
  std::memcpy(&bits, &x, 8);
  return bits;
}
static float __fmaf_rn(const float a, const float b, const float c) { return std::fma(a, b, c); }
static float emu_max(const float a, const float b) {
  if (std::isnan(a) || std::isnan(b)) return NAN;
  return a > b ? a : b > a ? b : std::signbit(a) ? b : a;
}
static int __float2int_rz(const float x) {
  if (std::isnan(x)) return 0;
  return x >= 2147483648.0f ? 0x7fffffff : x <= -2147483648.0f ? -0x7fffffff - 1 : (int)x;
}
static float emu_expf(const float x) { return exp2f(x * 1.44269504f); }
static float emu_min(const float a, const float b) { return -emu_max(-a, -b); }
static __half __ll2half_rn(const long long x) { return __double2half((double)x); }
static __nv_bfloat16 __ll2bfloat16_rn(const long long x) { return __double2bfloat16((double)x); }
static float __int_as_float(const int bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
static double __longlong_as_double(const long long bits) {
  double x;
  std::memcpy(&x, &bits, 8);
  return x;
}
// What warps multiply with.
static size_t __cvta_generic_to_shared(const void* p) { return (const unsigned char*)p - emu_dynamic; }
// Touches what a prefetch would fetch.
static void emu_fetch(const void* p) { (void)*(const volatile char*)p; }
static void emu_copy(const uint32_t to, const char* from, const int bytes, const int exist) {
  std::memset(emu_dynamic + to, 0xff, bytes);
  fibers[current].begun.push_back({to, from, bytes, exist});
}
static void emu_commit() {
  fibers[current].on_their_way.push_back({});
  fibers[current].on_their_way.back().swap(fibers[current].begun);
}
static void emu_wait(const int pending) {
  auto& groups = fibers[current].on_their_way;
  while ((int)groups.size() > pending) {
    for (const Copy& c : groups.front()) {
      std::memset(emu_dynamic + c.to, 0, c.bytes);
      std::memcpy(emu_dynamic + c.to, c.from, c.exist);
    }
    groups.erase(groups.begin());
  }
}
// A copy that nobody has waited for may still arrive: nothing else may be written there.
static void emu_free(const uint32_t to, const std::vector<Copy>& copies) {
  for (const Copy& c : copies) {
    if (to + 4 <= c.to || c.to + c.bytes <= to) continue;
    std::fprintf(stderr, "shared memory is written where a copy is on its way\n");
    std::abort();
  }
}
template <typename T>
static void emu_read(T& words, const uint32_t from) {
  if (from + sizeof words > emu_dynamic_bytes) {
    std::fprintf(stderr, "a read outside of shared memory\n");
    std::abort();
  }
  std::memcpy(&words, emu_dynamic + from, sizeof words);
}

static void emu_write(const uint32_t to, const uint32_t value) {
  for (unsigned t = 0; t < blockDim.x; ++t) {
    emu_free(to, fibers[t].begun);
    for (const auto& group : fibers[t].on_their_way) emu_free(to, group);
  }
  std::memcpy(emu_dynamic + to, &value, 4);
}
static void emu_matrices(uint32_t (&r)[4], const uint32_t address, const bool transposed) {
  const int first = current / 32 * 32, lane = current % 32;
  fibers[current].words[0] = address;
  __syncwarp();
  for (int q = 0; q < 4; ++q)
    for (int e = 0; e < 2; ++e) {
      const int row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
      uint16_t x;
      std::memcpy(&x, emu_dynamic + fibers[first + q * 8 + row].words[0] + column * 2, 2);
      r[q] = e ? r[q] | (uint32_t)x << 16 : x;
    }
  __syncwarp();
}
static float emu_half(const uint32_t word, const int at, const bool bf16) {
  const uint16_t bits = word >> at * 16;
  return bf16 ? __bfloat162float({bits}) : __half2float({bits});
}
static void emu_multiply(float* d, const uint32_t* a, const uint32_t b0, const uint32_t b1, const bool bf16) {
  const int first = current / 32 * 32, lane = current % 32;
  uint32_t* own = fibers[current].words;
  own[0] = a[0], own[1] = a[1], own[2] = a[2], own[3] = a[3], own[4] = b0, own[5] = b1;
  __syncwarp();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t x = fibers[first + row % 8 * 4 + k % 8 / 2].words[row / 8 + k / 8 * 2];
      const uint32_t y = fibers[first + column * 4 + k % 8 / 2].words[4 + k / 8];
      d[i] += emu_half(x, k % 2, bf16) * emu_half(y, k % 2, bf16);
    }
  }
  __syncwarp();
}
// The same for bytes, 32 of them along k; sums wrap.
static void emu_multiply_bytes(
    int* d, const uint32_t* a, const uint32_t b0, const uint32_t b1, const bool a_signed, const bool b_signed) {
  const int first = current / 32 * 32, lane = current % 32;
  uint32_t* own = fibers[current].words;
  own[0] = a[0], own[1] = a[1], own[2] = a[2], own[3] = a[3], own[4] = b0, own[5] = b1;
  __syncwarp();
  const auto byte = [](const uint32_t word, const int at, const bool is_signed) {
    const uint8_t bits = word >> at * 8;
    return is_signed ? (int)(int8_t)bits : (int)bits;
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    uint32_t sum = d[i];
    for (int k = 0; k < 32; ++k) {
      const uint32_t x = fibers[first + row % 8 * 4 + k % 16 / 4].words[row / 8 + k / 16 * 2];
      const uint32_t y = fibers[first + column * 4 + k % 16 / 4].words[4 + k / 16];
      sum += (uint32_t)(byte(x, k % 4, a_signed) * byte(y, k % 4, b_signed));
    }
    d[i] = (int)sum;
  }
  __syncwarp();
}
static uint32_t __byte_perm(const uint32_t x, const uint32_t y, const uint32_t which) {
  const uint64_t both = x | (uint64_t)y << 32;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= (uint32_t)(both >> (which >> i * 4 & 7) * 8 & 0xff) << i * 8;
  return r;
}
static uint32_t emu_pair(const float a, const float b, const bool bf16) {
  const uint16_t x = bf16 ? __float2bfloat16_rn(a).bits : __float2half_rn(a).bits;
  const uint16_t y = bf16 ? __float2bfloat16_rn(b).bits : __float2half_rn(b).bits;
  return x | (uint32_t)y << 16;
}
static uint32_t emu_sums(const uint32_t a, const uint32_t b, const bool bf16) {
  const auto sum = [&](const int at) { return emu_half(a, at, bf16) + emu_half(b, at, bf16); };
  return emu_pair(sum(0), sum(1), bf16);
}
static __half __ushort_as_half(const unsigned short bits) { return {bits}; }
static __nv_bfloat16 __ushort_as_bfloat16(const unsigned short bits) { return {bits}; }
static float rsqrtf(const float x) { return 1 / std::sqrt(x); }
static double rsqrt(const double x) { return 1 / std::sqrt(x); }
using std::isinf;
using std::isnan;

static FILE *given, *made;
static void* buffer(const size_t bytes, const bool filled) {
  void* p = std::malloc(bytes ? bytes : 1);
  std::memset(p, 0xff, bytes);
  if (filled && std::fread(p, 1, bytes, given) != bytes) std::abort();
  return p;
}
