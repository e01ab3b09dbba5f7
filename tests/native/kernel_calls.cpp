// Calls one kernel some times, by one thread, for tools/check_arm.py, which counts instructions.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "kernel_cases.h"

using namespace tandem;

namespace {

constexpr int64_t kWidth = 512;    // inputs and outputs
constexpr int64_t kContext = 512;  // keys
constexpr int64_t kGroup = 4, kHeadDim = 128;

template <class Case>
std::function<void()> product(int64_t rows, Case test) {
  return [=] { test.run(0, rows); };
}

template <class E>
std::function<void()> linear(int64_t rows) {
  return product(rows, LinearCase<E>(rows, kWidth, kWidth, true));
}

template <class T, class C>
std::function<void()> attention(int64_t queries) {
  AttentionCase<T, C> test(queries, kContext, kGroup, kHeadDim);
  return [test = std::move(test)]() mutable { test.run(); };
}

std::function<void()> quantization() {
  return [x = random_values<Bf16>(16 * kWidth), bytes = std::vector<uint8_t>(16 * kWidth),
          scales = std::vector<float>(16)]() mutable {
    call_quantize(x.data(), 16, kWidth, Input{0.0, 128}, bytes.data(), scales.data());
  };
}

const std::map<std::string, std::function<std::function<void()>()>> kCalls = {
    {"linear f32, 1 row", [] { return linear<float>(1); }},
    {"linear f32, 12 rows", [] { return linear<float>(12); }},
    {"linear f16, 12 rows", [] { return linear<F16>(12); }},
    {"linear bf16, 1 row", [] { return linear<Bf16>(1); }},
    {"linear bf16, 12 rows", [] { return linear<Bf16>(12); }},
    {"linear int8, 1 row", [] { return product(1, Int8Case<Bf16>(1, kWidth, kWidth, 128)); }},
    {"linear int8, 12 rows", [] { return product(12, Int8Case<Bf16>(12, kWidth, kWidth, 128)); }},
    {"quantize bf16, 16 rows", [] { return quantization(); }},
    {"attention bf16, 1 query", [] { return attention<Bf16, Bf16>(1); }},
    {"attention bf16, 48 queries", [] { return attention<Bf16, Bf16>(48); }},
    {"attention bf16, int8 cache, 1 query", [] { return attention<Bf16, int8_t>(1); }},
    {"attention bf16, int8 cache, 48 queries", [] { return attention<Bf16, int8_t>(48); }},
};

}  // namespace

// Without arguments: the names of the calls.
int main(int count, char** arguments) {
  if (count < 3) {
    for (const auto& [name, make] : kCalls) std::puts(name.c_str());
    return 0;
  }
  use_threads(1);
  const std::function<void()> call = kCalls.at(arguments[1])();
  for (int turn = std::atoi(arguments[2]); turn > 0; --turn) call();
}
