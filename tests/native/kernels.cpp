// The library's kernels against plain loops in double: for machines that have no torch to compare
// with, above all another architecture under an emulator (tools/check_arm.py). It is linked with the
// library that is installed. Exits with 1 at the first wrong result.

#include <cstdio>
#include <cstdlib>

#include "kernel_cases.h"

using namespace tandem;

namespace {

[[noreturn]] void fail(const char* what, double got, double expected) {
  std::fprintf(stderr, "%s: %.9g where %.9g is right\n", what, got, expected);
  std::exit(1);
}

// Relative to a sum of magnitudes: what a sum in float, and its rounding to T, may be off.
template <class T>
constexpr double kRounding = std::is_same_v<T, float> ? 3e-6 : 1.0 / 256;

void require_near(const char* what, double got, double expected, double tolerance) {
  if (!(std::abs(got - expected) <= tolerance)) fail(what, got, expected);
}

template <class T>
void require_same(const char* what, const T* got, const T* expected, int64_t count) {
  for (int64_t at = 0; at < count; ++at) {
    if (std::memcmp(got + at, expected + at, sizeof(T))) {
      fail(what, to_float(got[at]), to_float(expected[at]));
    }
  }
}

// A row is the same whatever rows are beside it.
template <class Case, class T>
void check_rows_alone(const char* what, const Case& test, const std::vector<T>& together) {
  for (int64_t row = 0; row < test.rows; ++row) {
    require_same(what, test.run(row, 1).data(), together.data() + row * test.outputs, test.outputs);
  }
}

template <class E>
void check_linear(int64_t rows, int64_t inputs, int64_t outputs, bool is_plain) {
  using T = Computed<E>;
  const LinearCase<E> test(rows, inputs, outputs, is_plain);
  const std::vector<T> got = test.run(0, rows);
  for (int64_t at = 0; at < rows * outputs; ++at) {
    const int64_t row = at / outputs, output = at % outputs;
    double sum = 0, magnitudes = 0;
    const auto add = [&](double value) { sum += value, magnitudes += std::abs(value); };
    for (int64_t input = 0; input < inputs; ++input) {
      add(double(to_float(test.x[row * inputs + input])) *
          to_float(test.values[output * inputs + input]));
    }
    if (!is_plain) add(to_float(test.bias[output])), add(to_float(test.residual[at]));
    // Sums are in float, of any T; only the result is rounded to it.
    require_near("linear", to_float(got[at]), sum,
                 kRounding<T> * std::abs(sum) + kRounding<float> * magnitudes);
  }
  check_rows_alone("a row of a linear layer alone", test, got);
}

template <class T>
void check_int8(int64_t rows, int64_t inputs, int64_t outputs, int64_t zero) {
  const Int8Case<T> test(rows, inputs, outputs, zero);
  const std::vector<T> got = test.run(0, rows);
  for (int64_t at = 0; at < rows * outputs; ++at) {
    const int64_t row = at / outputs, output = at % outputs;
    int64_t sum = 0;
    for (int64_t input = 0; input < inputs; ++input) {
      sum += (test.x[row * inputs + input] - zero) * test.values[output * inputs + input];
    }
    const float exact =
        float(sum) * test.x_scales[row] * test.scales[output] + test.bias[output];
    T expected;
    assign(expected, exact);
    require_same("int8 linear", &got[at], &expected, 1);
  }
  check_rows_alone("a row of an int8 layer alone", test, got);
}

// Each value within half a step, by the scale that is asked for.
template <class T>
void check_quantize(int64_t rows, int64_t width) {
  const std::vector<T> x = random_values<T>(rows * width, 3.0f);
  std::vector<uint8_t> bytes(rows * width);
  std::vector<float> scales(rows);
  for (const Input& input : {Input{0.0, 128}, Input{0.05, 120}}) {
    call_quantize(x.data(), rows, width, input, bytes.data(), scales.data());
    for (int64_t row = 0; row < rows; ++row) {
      float largest = 0;
      for (int64_t at = 0; at < width; ++at) {
        largest = std::max(largest, std::abs(to_float(x[row * width + at])));
      }
      const bool is_static = input.scale != 0;
      const float scale = is_static ? float(input.scale) : largest / 127;
      if (scales[row] != (is_static ? 1.0f : scale)) fail("scale", scales[row], scale);
      for (int64_t at = row * width; at < (row + 1) * width; ++at) {
        const double exact = to_float(x[at]) / double(scale) + double(input.zero);
        require_near("quantize", bytes[at], std::clamp(exact, 0.0, 255.0), 0.5001);
      }
    }
  }
}

template <class T, class C>
class PlainAttention {
 public:
  explicit PlainAttention(AttentionCase<T, C>& test) : test_(test), cache_(test.cache()) {}

  // One head of one query.
  std::vector<double> output(int64_t query, int64_t head) const {
    const int64_t sees = test_.context - (test_.queries - 1 - query);
    const int64_t kv_head = head / (test_.heads / test_.kv_heads);
    const T* q = test_.q.data() + (query * test_.heads + head) * test_.dim;
    std::vector<double> scores(sees), out(test_.dim);
    for (int64_t key = 0; key < sees; ++key) {
      for (int64_t at = 0; at < test_.dim; ++at) {
        scores[key] += double(to_float(q[at])) * value(cache_.keys, key, kv_head, at);
      }
      scores[key] *= test_.scale();
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    for (int64_t key = 0; key < sees; ++key) {
      for (int64_t at = 0; at < test_.dim; ++at) {
        out[at] += scores[key] / sum * value(cache_.values, key, kv_head, at);
      }
    }
    return out;
  }

 private:
  AttentionCase<T, C>& test_;
  const LayerCache<C> cache_;

  double value(const C* pages, int64_t key, int64_t head, int64_t at) const {
    const int64_t block = test_.blocks[key / cache_.block_size], slot = key % cache_.block_size;
    const C* row = pages + cache_.offset(block, head, slot);
    if constexpr (std::is_same_v<C, int8_t>) {
      float scale;
      std::memcpy(&scale, pages + cache_.scale_offset(block, head, slot), sizeof scale);
      return double(row[at]) * scale;
    } else {
      return to_float(row[at]);
    }
  }
};

template <class T, class C>
void check_attention(int64_t queries, int64_t context, int64_t group, int64_t dim) {
  AttentionCase<T, C> test(queries, context, group, dim);
  const std::vector<T> got = test.run();
  const PlainAttention<T, C> plain(test);
  // Weights are at most 1 and values about as large as `most`.
  const double most = std::is_same_v<C, int8_t> ? 2.0 : 4.0;
  for (int64_t query = 0; query < queries; ++query) {
    for (int64_t head = 0; head < test.heads; ++head) {
      const std::vector<double> expected = plain.output(query, head);
      for (int64_t at = 0; at < dim; ++at) {
        require_near("attention", to_float(got[(query * test.heads + head) * dim + at]),
                     expected[at], most * 2 * kRounding<T>);
      }
    }
  }
}

uint16_t rounded_to_bf16(float x) {
  const uint32_t bits = same_bits<uint32_t>(x);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// With its sign, which an addition takes from a zero.
Floats first_lane(float x) {
  const float lanes[kLanes] = {x};
  return load(lanes);
}

// Each number of 16 bits is read exactly and comes back; floats go to the nearest, ties to even.
void check_conversions() {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const F16 half{uint16_t(bits)};
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) continue;  // infinities and NaNs
    const double magnitude = exponent ? std::ldexp(1024.0 + fraction, exponent - 25)
                                      : std::ldexp(double(fraction), -24);
    const double expected = bits >> 15 ? -magnitude : magnitude;
    if (double(to_float(half)) != expected) fail("a float16", to_float(half), expected);
    const float up = std::nextafter(to_float(half), 1e9f);  // far less than half a step away
    for (const float x : {to_float(half), bits & 1023 ? up : to_float(half)}) {
      const uint16_t got = to_f16(first_lane(x))[0];
      if (got != bits) fail("to float16", got, bits);
    }
  }
  for (int turn = 0; turn < 200'000; ++turn) {
    uint32_t bits = generator()();
    if (turn % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000;  // ties
    const float x = same_bits<float>(bits);
    const uint16_t got = to_bf16(first_lane(x))[0];
    if (x != x) {
      const float back = to_float(Bf16{got});
      if (back == back) fail("the bfloat16 of a NaN", back, x);
    } else if (std::isnormal(x) && got != rounded_to_bf16(x)) {
      fail("to bfloat16", got, rounded_to_bf16(x));
    }
  }
}

void check_products() {
  for (const int64_t rows : {1, 2, 3, 12, 29}) {
    for (const int64_t inputs : {2, 6, 130}) {
      for (const int64_t outputs : {1, 7, 8, 33}) {
        const bool is_plain = (rows + inputs / 2 + outputs) % 2;
        check_linear<float>(rows, inputs, outputs, is_plain);
        check_linear<Bf16>(rows, inputs, outputs, is_plain);
        check_linear<F16>(rows, inputs, outputs, is_plain);
        check_int8<float>(rows, 2 * inputs, outputs, 128);
        check_int8<Bf16>(rows, 2 * inputs, outputs, 120);
      }
    }
    for (const int64_t width : {3, 64, 70}) {
      check_quantize<float>(rows, width);
      check_quantize<Bf16>(rows, width);
    }
  }
}

// Splits, drafts and tiles.
void check_attentions(int64_t context, int64_t group, int64_t dim) {
  for (const int64_t queries : {1, 3, 20}) {
    check_attention<float, float>(queries, context, group, dim);
    check_attention<Bf16, Bf16>(queries, context, group, dim);
    check_attention<float, F16>(queries, context, group, dim);
    check_attention<float, int8_t>(queries, context, group, dim);
    check_attention<Bf16, int8_t>(queries, context, group, dim);
  }
}

}  // namespace

int main() {
  check_conversions();
  for (const int threads : {1, 3}) {
    use_threads(threads);
    check_products();
    check_attentions(20, 4, 72);
    check_attentions(300, 1, 64);
    check_attentions(530, 3, 72);
  }
}
